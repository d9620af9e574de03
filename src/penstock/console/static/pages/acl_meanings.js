// What each operation gives, by the kind of resource, in a reader's words. docs/reference/permissions.md has every call.
import { t } from "../translations.js";

/** {TOPIC: {READ: "…"}}: those that mean something, in the order of use. */
export const meanings = () => ({
  TOPIC: {
    READ: t("Consume messages, and commit offsets of them. A view needs READ on the view alone."),
    WRITE: t("Produce messages, delay and cancel them. Enough for an idempotent producer."),
    CREATE: t("Create topics of this name."),
    DELETE: t("Delete the topic, and delete its records up to an offset."),
    ALTER: t("Add partitions. With ALTER_CONFIGS: retire partitions."),
    DESCRIBE: t("See that it exists, its partitions and offsets. READ, WRITE, DELETE and ALTER include it."),
    DESCRIBE_CONFIGS: t("See its settings."),
    ALTER_CONFIGS: t("Change its settings. Includes DESCRIBE_CONFIGS."),
    ALL: t("Everything with these topics, now and in future versions."),
  },
  GROUP: {
    READ: t("Join the group and commit its offsets; reset them. Consuming needs READ on the topics too."),
    DELETE: t("Delete the group, or its offsets of a topic."),
    DESCRIBE: t("See its members, offsets and lag. READ and DELETE include it."),
    DESCRIBE_CONFIGS: t("See its settings."),
    ALTER_CONFIGS: t("Pause and resume the group, and change its settings."),
    ALL: t("Everything with these groups, now and in future versions."),
  },
  TRANSACTIONAL_ID: {
    WRITE: t("Produce in transactions with this id. Needs WRITE on the topics too."),
    DESCRIBE: t("See the state of transactions. WRITE includes it."),
    TWO_PHASE_COMMIT: t("Keep transactions open without a time limit (two-phase commit)."),
    ALL: t("Everything with these transactional ids, now and in future versions."),
  },
  CLUSTER: {
    DESCRIBE: t("See ACLs, users, disks of brokers, and all groups."),
    ALTER: t("Change ACLs and users of the cluster, move partitions: as good as a super user."),
    CREATE: t("Create topics of any name."),
    DESCRIBE_CONFIGS: t("See settings of brokers, quotas and database groups."),
    ALTER_CONFIGS: t("Change quotas, settings of brokers, database groups."),
    IDEMPOTENT_WRITE: t("Start an idempotent producer. WRITE on any topic is enough for that too."),
    CLUSTER_ACTION: t("What brokers do among themselves. No permission allows it to a client."),
    ALL: t("Everything with the cluster itself, not with its topics: as good as a super user."),
  },
});

export const kinds = () => [
  ["TOPIC", t("Topics")],
  ["GROUP", t("Consumer groups")],
  ["TRANSACTIONAL_ID", t("Transactional ids")],
  ["CLUSTER", t("The cluster itself")],
];

const NOUNS = () => ({
  TOPIC: t("topic"),
  GROUP: t("group"),
  TRANSACTIONAL_ID: t("transactional id"),
  CLUSTER: t("the cluster"),
});

export const CLUSTER_NAME = "kafka-cluster";

/** "topic orders", "every topic", "the cluster". */
export function resourceText({ resource_type: type, resource_name: name, pattern_type: pattern }) {
  if (type === "CLUSTER") return NOUNS()[type];
  const noun = NOUNS()[type] ?? type.toLowerCase();
  if (name === "*" && pattern === "LITERAL") return t("every {noun}", { noun });
  return `${noun} ${name}${pattern === "PREFIXED" ? "…" : ""}`;
}
