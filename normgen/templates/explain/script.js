// Lines that belong together are marked together: of the spec, of the formulas, of the CUDA text.
const linked = [...document.querySelectorAll("[data-lines]")];
const linesOf = (element) => element.dataset.lines.split(" ");
const kernels = (element) => element.closest(".cuda");

function show(name) {
  for (const tab of document.querySelectorAll("[data-tab]"))
    tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
  for (const text of document.querySelectorAll("[data-text]")) text.hidden = text.dataset.text !== name;
}

function mark(lines) {
  for (const element of linked)
    element.classList.toggle("marked", linesOf(element).some((line) => lines.includes(line)));
}

function reveal(from) {
  const marked = linked.filter((element) => element.classList.contains("marked") && element !== from);
  const texts = marked.filter(kernels);
  const says = (element) => element.textContent.includes(".norm:");
  const seen = texts.filter((element) => element.offsetParent);
  const target = kernels(from)
    ? marked.find((element) => element.closest("#spec"))
    : seen.find(says) ?? texts.find(says) ?? seen[0] ?? texts[0];
  if (!target) return;
  const text = target.closest("[data-text]");
  if (!text) return target.scrollIntoView({ block: "nearest" });
  show(text.dataset.text);
  text.scrollTop = target.offsetTop - text.clientHeight / 3;
}

document.addEventListener("click", (event) => {
  const tab = event.target.closest("[data-tab]");
  if (tab) return show(tab.dataset.tab);
  const element = event.target.closest("[data-lines]");
  if (!element) return;
  const again = element.classList.contains("marked") && element.classList.contains("chosen");
  for (const other of linked) other.classList.remove("chosen");
  mark(again ? [] : linesOf(element));
  if (again) return;
  element.classList.add("chosen");
  reveal(element);
});
