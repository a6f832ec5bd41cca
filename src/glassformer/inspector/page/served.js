/** Page of `glassformer inspect`: a server answers, or the data embedded in the file. */

import { start } from "./main.js";
import { openSource } from "./source.js";

start(openSource());
