// Draws openapi.json: every route with what it takes and gives, an example for curl, and a form to try it.
const METHODS = ["get", "post", "delete"];

function make(tag, options = {}, ...children) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...children);
  return made;
}

function resolved(document_, schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? document_.components.schemas[name] : schema ?? {};
}

function example(document_, schema, depth = 0) {
  const known = resolved(document_, schema);
  if (known.example !== undefined) return known.example;
  if (known.default !== undefined) return known.default;
  if (known.enum) return known.enum[0];
  if (known.anyOf) return example(document_, known.anyOf[0], depth);
  if (depth > 5) return null;
  if (known.type === "array") return [example(document_, known.items, depth + 1)];
  if (known.type === "object") {
    const fields = Object.entries(known.properties ?? {});
    return Object.fromEntries(fields.map(([name, field]) => [name, example(document_, field, depth + 1)]));
  }
  return { integer: 1, number: 0.5, boolean: true, string: "text" }[known.type] ?? null;
}

function isFile(schema) {
  return schema?.format === "binary" || schema?.contentMediaType || isFileList(schema);
}

function isFileList(schema) {
  return schema?.type === "array" && schema.items?.format === "binary";
}

function table(rows) {
  return make("table", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell)))));
}

function curl(method, path, kind, schema, sample) {
  const said = [`curl -X ${method.toUpperCase()} '${location.origin}${path}'`];
  if (kind === "multipart/form-data") {
    const wanted = Object.entries(schema.properties ?? {}).filter(([name, field]) => isFile(field) || name === "model");
    said.push(...wanted.map(([name, field]) => `-F '${name}=${isFile(field) ? "@picture.jpg" : field.example ?? "NAME"}'`));
  } else if (kind) {
    said.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(sample)}'`);
  }
  return said.join(" \\\n  ");
}

function field(name, schema, where) {
  const input = make("input", { name, type: isFile(schema) ? "file" : "text", multiple: Boolean(isFileList(schema)) });
  input.dataset.where = where;
  if (name === "model") input.value = schema?.example ?? "";
  return make("label", {}, `${name} `, input, schema?.description ? ` ${schema.description}` : "");
}

async function shown(answer) {
  const kind = answer.headers.get("content-type") ?? "";
  const status = make("p", {}, `${answer.status} ${kind}`);
  if (kind.startsWith("image/")) {
    return [status, make("img", { src: URL.createObjectURL(await answer.blob()), alt: "the answer" })];
  }
  const text = await answer.text();
  let pretty = text;
  try { pretty = JSON.stringify(JSON.parse(text), null, 1); } catch { /* it is text */ }
  return [status, make("pre", {}, pretty.length > 20000 ? `${pretty.slice(0, 20000)}\n…` : pretty)];
}

function request(method, path, form, kind) {
  const query = new URLSearchParams();
  const body = new FormData();
  for (const input of form.querySelectorAll("input")) {
    const { where } = input.dataset;
    if (where === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (where === "query" && input.value) query.set(input.name, input.value);
    else if (input.type === "file") [...input.files].forEach((file) => body.append(input.name, file));
    else if (input.value) body.append(input.name, input.value);
  }
  const token = document.getElementById("token").value;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (kind === "application/json") headers["Content-Type"] = kind;
  const sent = kind === "application/json" ? form.querySelector("textarea").value : kind ? body : undefined;
  const asked = query.size ? `${path}?${query}` : path;
  return fetch(asked.slice(1), { method: method.toUpperCase(), headers, body: sent });
}

function tryOut(method, path, operation, kind, schema, sample) {
  const fields = (operation.parameters ?? []).map((one) => field(one.name, one.schema, one.in));
  if (kind === "multipart/form-data") {
    fields.push(...Object.entries(schema.properties ?? {}).map(([name, one]) => field(name, one, "form")));
  } else if (kind) {
    fields.push(make("textarea", { value: JSON.stringify(sample, null, 1), ariaLabel: "body" }));
  }
  const out = make("div", { role: "status" });
  const form = make("form", {}, ...fields, make("button", {}, "Try it"), out);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      out.replaceChildren(...(await shown(await request(method, path, form, kind))));
    } catch (error) {
      out.replaceChildren(`The service did not answer: ${error.message}`);
    }
  });
  return form;
}

function route(document_, path, method, operation) {
  const content = operation.requestBody?.content ?? {};
  const kind = ["application/json", "multipart/form-data"].find((one) => one in content);
  const schema = kind ? resolved(document_, content[kind].schema) : undefined;
  const sample = kind ? content[kind].example ?? example(document_, schema) : undefined;
  const head = make("summary", {}, make("span", { className: `method ${method}` }, method.toUpperCase()),
    make("code", {}, path), ` ${(operation.description ?? "").split(/[.:;]/)[0]}`);
  const inner = make("div", {}, make("p", {}, operation.description ?? ""));
  if (schema) inner.append(make("h3", {}, `Body: ${kind}`), make("pre", {}, JSON.stringify(schema, null, 1)));
  inner.append(make("h3", {}, "Answers"),
    table(Object.entries(operation.responses ?? {}).map(([status, one]) => [status, one.description ?? ""])),
    make("h3", {}, "Example"), make("pre", {}, curl(method, path, kind, schema, sample)));
  const made = make("details", {}, head, inner);
  made.addEventListener("toggle", () => {
    if (made.open && !inner.querySelector("form")) {
      inner.append(tryOut(method, path, operation, kind, schema, sample));
    }
  });
  return made;
}

async function draw() {
  const about = document.getElementById("about");
  const token = document.getElementById("token").value;
  const answer = await fetch("openapi.json", { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (!answer.ok) {
    about.textContent = answer.status === 401 ? "The service asks for a token." : `The service says ${answer.status}.`;
    return;
  }
  const described = await answer.json();
  about.textContent = `${described.info.title} ${described.info.version}: ${described.info.summary}`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const method of METHODS.filter((one) => one in methods)) {
      const tag = methods[method].tags?.[0] ?? "others";
      groups.set(tag, [...(groups.get(tag) ?? []), route(described, path, method, methods[method])]);
    }
  }
  const parts = [...groups].map(([tag, routes]) => make("section", {}, make("h2", {}, tag), ...routes));
  document.getElementById("routes").replaceChildren(...parts);
}

document.getElementById("token").addEventListener("change", draw);
draw();
