// Settings of topics in a reader's words: choices for the usual ones, and how a value reads.
import { bytes, duration } from "../format.js";
import { t } from "../translations.js";

export const PRESETS = {
  "retention.ms": [
    ["3600000", "1 h"],
    ["86400000", "1 d"],
    ["259200000", "3 d"],
    ["604800000", "7 d"],
    ["1209600000", "14 d"],
    ["2592000000", "30 d"],
    ["-1", t("forever")],
  ],
  "cleanup.policy": [
    ["delete", t("age and size")],
    ["compact", t("last message of each key")],
    ["compact,delete", t("both")],
  ],
  "compression.type": [
    ["producer", t("as the producer sent it")],
    ["zstd", "zstd"],
    ["lz4", "lz4"],
    ["snappy", "snappy"],
    ["gzip", "gzip"],
    ["uncompressed", t("none")],
  ],
};

const HELP = {
  "retention.ms": "Older messages are deleted, a segment at a time.",
  "cleanup.policy": "Compaction keeps the newest message of each key, for tables of current state.",
  "compression.type": "What brokers store. Producers usually compress better, in larger batches.",
};

export const settingHelp = (name) => t(HELP[name] ?? "");

/** "7 d" for 604800000 of retention.ms; empty if the value reads by itself. */
export function reading(name, value) {
  if (value === null || value === undefined || !/^-?\d+$/.test(value)) return "";
  const number = Number(value);
  if (number > 9e15) return t("unlimited");
  if (/\.ms$/.test(name)) return duration(number);
  if (/bytes$/.test(name)) return number < 0 ? t("unlimited") : bytes(number);
  return "";
}
