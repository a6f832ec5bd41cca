/**
 * Panels with a tab, in the order of the tabs.
 *
 * @import { Tab } from "./app.js"
 */

import { ablationTab } from "../panels/ablation.js";
import { alignmentTab } from "../panels/alignment.js";
import { attentionTab } from "../panels/attention.js";
import { attributionTab } from "../panels/attribution.js";
import { beamTab } from "../panels/beam.js";
import { compareTab } from "../panels/compare.js";
import { expertsTab } from "../panels/experts.js";
import { flowTab } from "../panels/flow.js";
import { lensTab } from "../panels/lens.js";
import { patchTab } from "../panels/patch.js";
import { stepsTab } from "../panels/steps.js";
import { textsTab } from "../panels/texts.js";
import { trainingTab } from "../panels/training.js";

/** @type {Tab[]} */
export const TABS = [flowTab, alignmentTab, attentionTab, lensTab, expertsTab, attributionTab, stepsTab, ablationTab, beamTab, compareTab, patchTab, textsTab, trainingTab];
