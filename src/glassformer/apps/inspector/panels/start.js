/**
 * Start of the page without an open model: the gallery of tiny models, or a run before its first checkpoint.
 *
 * @import { App } from "../page/app.js"
 *
 * @typedef {{name: string, doc: string, folder: string, state: "absent" | "training" | "stopped" | "ready", step: number, max_steps: number}}
 *   GalleryModel
 * @typedef {{model: string | null, folder: string, is_sweep: boolean, gallery: GalleryModel[] | null, opens_folders: boolean}} Session
 */

import { button, fill, h } from "../page/dom.js";
import { frame } from "../page/frame.js";
import { count } from "../page/text.js";
import { createTraining } from "./training.js";

const POLL_MS = 2000;
const STATES = { absent: "not trained", training: "is being trained", stopped: "partly trained", ready: "trained" };

/**
 * @param {App} app
 * @param {Session} session
 * @param {(model: string) => void} onopen called with the name of a model that the server has opened
 */
export function createStart(app, session, onopen) {
  const list = h("div", { class: "gallery" });
  const note = h("p", { class: "about" });
  const card = frame({
    title: session.gallery ? "Gallery" : "Waiting for the first checkpoint",
    explanation: session.gallery
      ? "Tiny models that are trained on this computer on first use. A trained model opens at once."
      : `The run in ${session.folder} has no checkpoint yet. The page opens the model when the first one is saved.`,
  }, list, note);
  const place = h("div");
  const element = h("div", { class: "panel" }, card.element, place);
  /** The panel of the run that is being trained, and its name. */
  let training = createTraining(app, session.folder || undefined);
  let shownName = "";
  /** The model whose training was started here. It is opened when it is ready. */
  let wanted = "";

  /** @param {Session} next */
  function draw(next) {
    const models = next.gallery ?? [];
    const busy = models.find((model) => model.state === "training");
    fill(list, ...models.map((model) => galleryCard(model, busy)));
    note.textContent = busy ? `${busy.name} is being trained: step ${count(busy.step)} of ${count(busy.max_steps)}.` : "";
    if (busy && busy.name !== shownName) {
      training = createTraining(app, busy.folder, busy.max_steps);
      shownName = busy.name;
    }
    fill(place, busy || !next.gallery ? training.element : null);
    if (busy || !next.gallery) training.render(new Set(["panel"]));
    if (models.some((model) => model.name === wanted && model.state === "ready")) {
      const name = wanted;
      wanted = "";
      void open({ name });
    }
  }

  /** @param {GalleryModel} model @param {GalleryModel | undefined} busy */
  function galleryCard(model, busy) {
    const progress = h("progress", { max: model.max_steps, value: model.step, "aria-label": `Progress of ${model.name}` });
    const action = model.state === "ready"
      ? button("Open", () => void open({ name: model.name }), { class: "primary" })
      : button(model.state === "training" ? "training …" : model.state === "stopped" ? "Continue training" : "Train", () => void train(model.name), { disabled: Boolean(busy) });
    return h("section", { class: "card gallery-card", "aria-label": model.name }, h("h3", {}, model.name), h("p", { class: "about" }, model.doc),
      model.state === "ready" || model.state === "absent" ? null : progress, h("div", { class: "row" }, action, h("span", { class: "facts" }, STATES[model.state])));
  }

  /** @param {{name?: string}} body */
  const open = (body) => app.source.post("/api/open", body).then(({ id }) => onopen(id)).catch(app.fail);

  /** @param {string} name */
  function train(name) {
    wanted = name;
    return app.source.post("/api/train", { name }).then(draw).catch(app.fail);
  }

  async function poll() {
    if (!element.isConnected) return;
    try {
      if (session.gallery) draw(await app.source.get("/api/session"));
      // a checkpoint becomes the model of the folder some time after it is written
      else if ((await app.source.get("/api/live?since=0")).model_step !== null) return await open({});
    } catch (error) {
      app.fail(error);
    }
    setTimeout(() => void poll(), POLL_MS);
  }

  draw(session);
  setTimeout(() => void poll(), POLL_MS);
  return element;
}
