/** Page of `glassformer inspect`: the data are from a server, or embedded in the file. */

import { start } from "./main.js";
import { openSource } from "./source.js";

start(openSource());
