/** Page of `glassformer inspect`: the data are from a server. */

import { start } from "./main.js";
import { Source } from "./source.js";

start(new Source());
