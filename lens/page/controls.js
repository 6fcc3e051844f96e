// Stop and step: the controls of a page whose operator runs against the embedded API server. It makes its own markup.

/** An element with attributes and children. */
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Sends an order, and returns the answer: `{"error": "…"}` if it was refused. */
async function order(what, body) {
  try {
    const answer = await fetch(`control/${what}`, { method: "POST", body: JSON.stringify(body) });
    const text = await answer.text();
    return text.startsWith("{") ? JSON.parse(text) : { error: text };
  } catch {
    return { error: "listwatch no longer runs" };
  }
}

/** A button with an order, and a sentence about it; what is wrong with it is said in `status`. */
function button(text, title, status, act) {
  const element = make("button", { type: "button", title }, text);
  element.addEventListener("click", async () => {
    status.textContent = (await act())?.error ?? "";
  });
  return element;
}

/**
 * Shows the controls in an element.
 * @param {HTMLElement} element
 * @param {{user: string, restart: boolean, help: string, checks: {name: string, summary: string}[]}} offer whose writes are held, and what else there is
 * @returns {(news: {faults: string[], held: object[]}) => void} to be told the faults to come and the held requests, when they change
 */
export function show(element, offer) {
  const status = make("p", { role: "status" });
  const held = make("ol", { "aria-label": "Held requests, the oldest first" });
  const faults = make("ul", { "aria-label": "Faults to come" });
  const user = offer.user && `,user=${offer.user}`;
  const hold = button("Hold writes", "Each write of the operator waits at the server until you let it go, or refuse it.", status, () => order("fault", { fault: `hold${user}` }));
  const buttons = make("p", { class: "buttons" }, hold,
    button("Let the next one go", "The server executes the oldest of the held writes, or sends the oldest of the held answers.", status, () => (next === undefined ? { error: "Nothing is held." } : order("release", { id: next }))),
    button("End holding and all faults", "The server executes all held writes, sends all held answers and events, and causes no more faults.", status, () => order("end", {})));
  if (offer.restart) buttons.append(button("Restart the operator", "Ends the process of the operator, and starts it again.", status, () => order("restart", {})));
  element.replaceChildren(make("h2", {}, "Stop and step"), buttons, kindForm(user, status), status, held, faults,
    faultForm(offer, status), ...(offer.checks.length ? [checkForm(offer)] : []), editor());
  let next;
  return (news) => {
    next = news.held[0]?.id;
    hold.disabled = news.faults.some((fault) => fault.startsWith("hold,") || fault === "hold");
    update(held, news.held, status);
    faults.replaceChildren(...news.faults.map((fault) => make("li", {}, fault)));
  };
}

/** Holds what the operator reads of a kind. */
function kindForm(user, status) {
  const kind = make("input", { name: "kind", placeholder: "configmaps", list: "kinds", required: "", autocomplete: "off" });
  const both = async (what) => {
    const requests = `path=/${kind.value.split(".")[0]}${user}`;
    const [one, other] = [await order(what, { fault: `stall-watches,${requests}` }), await order(what, { fault: `hold-answer,method=GET,${requests}` })];
    return one.error ? one : other;
  };
  const form = make("form", {}, make("label", {}, "Answers and events about ", kind),
    make("button", { title: "Gets, lists and events of this kind wait at the server, so the operator does not know what has changed." }, "Hold"),
    button("Let go", "The server sends what it held of this kind.", status, () => both("end")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    status.textContent = (await both("fault")).error ?? "";
  });
  return form;
}

/** Shows the held requests. Those that were shown before stay as they are, with the focus. */
function update(list, requests, status) {
  const ids = new Set(requests.map(({ id }) => String(id)));
  for (const item of [...list.children]) if (!ids.delete(item.dataset.id)) item.remove();
  for (const { id, user, method, target, body } of requests.filter((request) => ids.has(String(request.id)))) {
    const refuse = (code, means) => button(`Refuse with ${code}`, `The write has no effect, and the operator is told that ${means}.`, status, () => order("refuse", { id, status: code }));
    list.append(make("li", { "data-id": id },
      make("details", {}, make("summary", {}, `${method} ${target}`), make("p", {}, `by ${user}`), make("pre", {}, pretty(body))),
      button("Let go", "The server executes this write, or sends this answer.", status, () => order("release", { id })), " ", ...(method === "GET" ? [] : [refuse(409, "the object has changed since it was read (Conflict)"), " ", refuse(500, "the server failed (Internal Server Error)")])));
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Any fault of the server, by name. */
function faultForm({ help }, status) {
  const input = make("input", { name: "fault", placeholder: "stall-watches,path=/pods", size: 40, required: "", autocomplete: "off" });
  const form = make("form", {}, make("label", {}, "Fault ", input), " ", make("button", {}, "Cause it"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { error } = await order("fault", { fault: input.value });
    status.textContent = error ?? "";
    if (!error) input.value = "";
  });
  return make("details", {}, make("summary", {}, "Faults: answers that are late, refused or lost, and watches that stop"), form,
    make("pre", {}, help));
}

/** One check of the scorecard, and its report. */
function checkForm({ checks }) {
  const names = make("select", { name: "check" }, ...checks.map(({ name }) => make("option", {}, name)));
  const summary = make("p", { id: "check-summary" });
  const describe = () => { summary.textContent = checks[names.selectedIndex].summary; };
  names.setAttribute("aria-describedby", summary.id);
  names.addEventListener("change", describe);
  describe();
  const run = make("button", {}, "Run it");
  const report = make("pre", { role: "status" });
  const form = make("form", {}, make("label", {}, "Check ", names), " ", run, summary);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    run.disabled = true;
    report.textContent = "The check runs, with operators of its own. It takes up to some minutes.";
    const answer = await order("check", { check: names.value });
    report.textContent = answer.error ?? answer.report;
    run.disabled = false;
  });
  return make("details", {}, make("summary", {}, "Scorecard: run one check, beside this operator"), form, report);
}

/** Reads an object, and writes what the user makes of it. */
function editor() {
  const status = make("p", { role: "status" });
  const object = make("input", { name: "object", placeholder: "configmaps/default/a", list: "objects", size: 40, required: "", autocomplete: "off" });
  const text = make("textarea", { rows: 14, spellcheck: "false", "aria-label": "The object, as JSON" });
  const read = make("form", {}, make("label", {}, "Object ", object), " ", make("button", {}, "Read"));
  const write = make("button", { type: "button" }, "Write");
  const tell = ({ error, status: code, body }) => {
    status.textContent = error ?? (code < 300 ? `${code}: version ${body.metadata.resourceVersion}` : `${code}: ${body.message ?? body}`);
    if (code < 300) text.value = JSON.stringify(body, null, 2);
  };
  read.addEventListener("submit", async (event) => {
    event.preventDefault();
    tell(await order("read", { object: object.value }));
  });
  write.addEventListener("click", async () => tell(await order("write", { object: object.value, text: text.value })));
  return make("details", {}, make("summary", {}, "Change an object, as admin"), read, text, make("p", {}, write), status);
}
