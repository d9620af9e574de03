// A message as people read it: JSON with colours, text, or hex; headers; and what it is about in one line.
import { banner, pairs, segments } from "./components.js";
import { h, show } from "./dom.js";
import { bytes, count, time } from "./format.js";
import { t } from "./translations.js";

const NAMES = { avro: "Avro", protobuf: "Protobuf", json: "JSON" };

/** The bytes of a part of a message, which the API gives as {format: json, text or hex; text; size_bytes; is_cut}. */
export function bytesOf(part) {
  if (part === null || part === undefined) return null;
  if (part.format === "hex")
    return Uint8Array.from(part.text.split(" ").filter(Boolean), (digits) => parseInt(digits, 16));
  return new TextEncoder().encode(part.text);
}

export const textOf = (part) => part?.text ?? null;
export const isBinary = (part) => part?.format === "hex";
/** Whether a schema turned it into JSON: what is shown is not what is stored. */
export const isDecoded = (part) => Boolean(part?.schema) && !part.problem && !isBinary(part);

/** Bytes as base64, in pieces that fit into a call. */
export function base64(data) {
  let text = "";
  for (let start = 0; start < data.length; start += 8192)
    text += String.fromCharCode(...data.subarray(start, start + 8192));
  return btoa(text);
}

export function preview(part, length = 160) {
  if (part === null || part === undefined) return h("span.muted", null, t("null"));
  if (part.text === "") return h("span.muted", null, t("empty"));
  const text = part.text.slice(0, length).replace(/\s+/g, " ");
  return h("span.mono", null, isBinary(part) ? [h("span.tag", null, t("Hex")), " ", text] : text);
}

/** JSON as coloured text nodes; numbers are kept as they were written. */
function coloured(text) {
  const pretty = indent(text);
  const holder = h("pre.payload", { tabindex: "0" });
  const pattern = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;
  let end = 0;
  for (const match of pretty.matchAll(pattern)) {
    holder.append(pretty.slice(end, match.index));
    if (match[1]) holder.append(h(match[2] ? "span.j-key" : "span.j-string", null, match[1]), match[2] ?? "");
    else if (match[3]) holder.append(h("span.j-number", null, match[3]));
    else holder.append(h("span.j-word", null, match[4]));
    end = match.index + match[0].length;
  }
  holder.append(pretty.slice(end));
  return holder;
}

// JSON.stringify would change large numbers; this only moves white space.
function indent(text) {
  let depth = 0;
  let out = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "{" || token === "[") out += `${token}\n${"  ".repeat(++depth)}`;
    else if (token === "}" || token === "]") out += `\n${"  ".repeat(--depth)}${token}`;
    else if (token === ",") out += `,\n${"  ".repeat(depth)}`;
    else if (token === ":") out += ": ";
    else out += token;
  }
  return out.replace(/([{[])\s+([}\]])/g, "$1$2");
}

function hexDump(data) {
  const lines = [];
  for (let start = 0; start < Math.min(data.length, 65536); start += 16) {
    const part = [...data.slice(start, start + 16)];
    const hex = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return h("pre.payload.hex", { tabindex: "0" }, lines.join("\n"));
}

/** A part with a switch between JSON, text and hex. */
export function payload(title, part) {
  if (part === null || part === undefined)
    return h("section", null, h("div.section-title", null, title, h("span.muted", null, t("null"))));
  const { text } = part;
  const kinds = [
    ...(part.format === "json" && text.length < 500000 ? [["json", "JSON"]] : []),
    ...(isBinary(part) ? [] : [["text", t("Text")]]),
    ...(isDecoded(part) ? [] : [["hex", t("Hex")]]),
  ];
  const holder = h("div");
  const drawn = (kind) =>
    show(
      holder,
      kind === "json"
        ? coloured(text)
        : kind === "text"
          ? h("pre.payload", { tabindex: "0" }, text)
          : hexDump(bytesOf(part)),
    );
  drawn(kinds[0][0]);
  return h(
    "section",
    null,
    h(
      "div.section-title",
      null,
      [title, bytes(part.size_bytes), part.schema ? NAMES[part.schema] : ""].filter(Boolean).join(" · "),
      segments(kinds, kinds[0][0], drawn, title),
    ),
    part.problem ? banner("warn", t("The schema does not fit: shown as it is stored"), part.problem) : null,
    part.is_cut ? h("p.muted", null, t("Cut: download it to see the rest.")) : null,
    holder,
  );
}

/** Everything of a message, for a drawer. `record` has partition, offset, timestamp_ms, key, value, headers. */
export function recordBody(record, extra = []) {
  return [
    record.is_masked ? banner("", t("Parts of this message are masked for your role."), "") : null,
    pairs([
      [t("Partition"), record.partition],
      [t("Offset"), count(record.offset)],
      [t("Time"), time(record.timestamp_ms, { millis: true })],
      ...extra,
    ]),
    payload(t("Key"), record.key),
    payload(t("Value"), record.value),
    h(
      "section",
      null,
      h("div.section-title", null, `${t("Headers")} · ${record.headers.length}`),
      record.headers.length
        ? pairs(
            record.headers.map((each) => [
              h("code", null, each.name),
              h("code", null, textOf(each.value) ?? t("null")),
            ]),
          )
        : h("p.muted", null, t("none")),
    ),
  ];
}

/** Offers bytes as a file. */
export function save(name, data, type = "application/octet-stream") {
  const address = URL.createObjectURL(new Blob([data], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
