// Schemas of a topic: what its keys and values are decoded with. A dialog of the messages page.
import { del, get, post } from "../api.js";
import { button, checkbox, emptyState, field, iconButton, input, select, textarea } from "../components.js";
import { act, confirm, dialog, form, toast } from "../dialogs.js";
import { h, show } from "../dom.js";
import { table } from "../grid.js";
import { base64 } from "../record.js";
import { t } from "../translations.js";

const FORMATS = { avro: "Avro", protobuf: "Protobuf", json: "JSON" };
const SIDES = () => ({ value: t("Value"), key: t("Key") });

const about = (each) =>
  each.is_framed
    ? each.schema_id === null
      ? t("with any id")
      : t("with id {id}", { id: each.schema_id })
    : t("without framing");

/** Shows the schemas of a topic; `onchange` is called after each change. */
export async function schemasDialog(scope, topic, onchange) {
  const holder = h("div.stack");
  const refresh = async () => {
    const found = await act(() => get(`${scope}/schemas`));
    if (found) show(holder, list(found));
  };
  const changed = () => Promise.all([refresh(), onchange()]);
  const remove = (each) =>
    confirm({
      title: t("Remove the schema of {part}", { part: SIDES()[each.side] }),
      text: t("Messages are shown as they are stored from then on; the topic itself is not changed."),
      action: t("Remove"),
      submit: async () => {
        await del(`${scope}/schemas/${encodeURIComponent(each.id)}`);
        toast("ok", t("The schema is removed"));
        await changed();
      },
    });
  const list = (found) =>
    table(
      [
        { key: "side", title: t("Of"), cell: (each) => SIDES()[each.side] },
        { key: "format", title: t("Format"), cell: (each) => h("b", null, FORMATS[each.format]) },
        { key: "frame", title: t("Messages"), cell: about },
        {
          key: "message",
          title: t("Message"),
          phone: false,
          clip: true,
          cell: (each) => h("code", null, each.message || "–"),
        },
        {
          key: "act",
          title: "",
          class: "actions-cell",
          cell: (each) => iconButton("trash", t("Remove the schema of {part}", { part: SIDES()[each.side] }), () => remove(each)),
        },
      ],
      found,
      {
        key: (each) => each.id,
        label: t("Schemas"),
        empty: () =>
          emptyState({
            symbol: "messages",
            title: t("No schemas"),
            text: t("Give a schema, and Avro or Protobuf messages of this topic are shown and searched as JSON."),
          }),
      },
    );
  dialog({
    title: t("Schemas of {name}", { name: topic.name }),
    wide: true,
    body: holder,
    footer: [button(t("Add schema"), () => addSchema(scope, topic, changed), { kind: "primary", symbol: "plus" })],
  });
  await refresh();
}

function addSchema(scope, topic, ondone) {
  const side = select(Object.entries(SIDES()), "value");
  const format = select(Object.entries(FORMATS), "avro");
  const framed = checkbox(t("Five bytes of a schema registry come first"), true, () => drawn());
  const id = input({ type: "number", min: 0, placeholder: t("any") });
  const text = textarea({ rows: 10, autofocus: true });
  const file = h("input.input", { type: "file" });
  const message = input({ class: "mono", placeholder: "shop.v1.Order" });
  const fields = {
    id: field(t("Schema id"), id, t("Empty: whatever the id is.")),
    text: field(t("Schema"), text, t("The Avro schema as JSON.")),
    file: field(
      t("Descriptor set"),
      file,
      t("Made by: {command}", { command: "protoc --include_imports --descriptor_set_out=order.pb order.proto" }),
    ),
    message: field(t("Message"), message, t("Empty: the framing tells, or it is the first of the file.")),
  };
  const drawn = () => {
    fields.id.hidden = !framed.box.checked;
    fields.text.hidden = format.value !== "avro";
    fields.file.hidden = fields.message.hidden = format.value !== "protobuf";
  };
  format.addEventListener("change", drawn);
  drawn();
  form({
    title: t("Add a schema to {name}", { name: topic.name }),
    action: t("Add schema"),
    wide: true,
    body: [
      h("div.fields", null, field(t("Of"), side), field(t("Format"), format), fields.id),
      framed,
      fields.text,
      fields.file,
      fields.message,
    ],
    submit: async () => {
      const chosen = file.files[0];
      const isProtobuf = format.value === "protobuf";
      await post(`${scope}/schemas`, {
        side: side.value,
        format: format.value,
        is_framed: framed.box.checked,
        schema_id: framed.box.checked && id.value !== "" ? Number(id.value) : null,
        message: isProtobuf ? message.value.trim() : "",
        text: isProtobuf
          ? chosen
            ? base64(new Uint8Array(await chosen.arrayBuffer()))
            : ""
          : format.value === "avro"
            ? text.value
            : "",
      });
      toast("ok", t("Messages of {name} are decoded from now on", { name: topic.name }));
      await ondone();
    },
  });
}
