// Starts the console: who is signed in, which clusters there are, which page an address means.
import { base, get, setCsrf } from "./api.js";
import { problemBanner } from "./components.js";
import { show } from "./dom.js";
import { at, onDraw, route, start, state } from "./router.js";
import { buildShell, onPage, refreshCounts } from "./shell.js";
import { t } from "./translations.js";
import { overview } from "./pages/overview.js";
import { topics } from "./pages/topics.js";
import { topic } from "./pages/topic.js";
import { groups } from "./pages/groups.js";
import { group } from "./pages/group.js";
import { messages } from "./pages/messages.js";
import { delayed, delayedTopic } from "./pages/delayed.js";
import { deadLetters, deadLettersOf } from "./pages/dead_letters.js";
import { brokers } from "./pages/brokers.js";
import { databases } from "./pages/databases.js";
import { pipeline } from "./pages/pipeline.js";
import { transactions } from "./pages/transactions.js";
import { account, users } from "./pages/users.js";
import { acls } from "./pages/acls.js";
import { clusterUsers } from "./pages/cluster_users.js";
import { quotas } from "./pages/quotas.js";
import { alerts } from "./pages/alerts.js";
import { audit } from "./pages/audit.js";
import { jobs } from "./pages/jobs.js";

const section = (key, title, address) => ({ key, crumbs: () => [[t(title), at`/`.replace(/\/$/, "") + address]] });
const inside = (key, title, address, name) => ({
  key,
  crumbs: (params) => [
    [t(title), at`/`.replace(/\/$/, "") + address],
    [name(params), ""],
  ],
});

route("/", overview, section("overview", "Overview", "/"));
route("/topics", topics, section("topics", "Topics", "/topics"));
route(
  "/topics/:topic",
  topic,
  inside("topics", "Topics", "/topics", (params) => params.topic),
);
route(
  "/topics/:topic/:tab",
  topic,
  inside("topics", "Topics", "/topics", (params) => params.topic),
);
route("/groups", groups, section("groups", "Consumer groups", "/groups"));
route(
  "/groups/:group",
  group,
  inside("groups", "Consumer groups", "/groups", (params) => params.group),
);
route(
  "/groups/:group/:tab",
  group,
  inside("groups", "Consumer groups", "/groups", (params) => params.group),
);
route("/messages", messages, section("messages", "Messages", "/messages"));
route("/delayed", delayed, section("delayed", "Delayed messages", "/delayed"));
route(
  "/delayed/:topic",
  delayedTopic,
  inside("delayed", "Delayed messages", "/delayed", (params) => params.topic),
);
route("/dead-letters", deadLetters, section("dead", "Dead letters", "/dead-letters"));
route(
  "/dead-letters/:group",
  deadLettersOf,
  inside("dead", "Dead letters", "/dead-letters", (params) => params.group),
);
route("/brokers", brokers, section("brokers", "Brokers", "/brokers"));
route("/databases", databases, section("databases", "Database nodes", "/databases"));
route("/pipeline", pipeline, section("pipeline", "Pipeline", "/pipeline"));
route("/pipeline/:tab", pipeline, section("pipeline", "Pipeline", "/pipeline"));
route("/transactions", transactions, section("transactions", "Transactions", "/transactions"));
route("/cluster-users", clusterUsers, section("cluster_users", "Cluster users", "/cluster-users"));
route("/acls", acls, section("acls", "Permissions", "/acls"));
route("/acls/:tab", acls, section("acls", "Permissions", "/acls"));
route("/quotas", quotas, section("quotas", "Quotas", "/quotas"));
route("/alerts", alerts, section("alerts", "Alerts", "/alerts"));
route("/alerts/:tab", alerts, section("alerts", "Alerts", "/alerts"));
route("/jobs", jobs, section("jobs", "Cleaning jobs", "/jobs"));
route("/users", users, section("users", "Users and roles", "/users"));
route("/account", account, section("account", "My account", "/account"));
route("/audit", audit, section("audit", "Audit log", "/audit"));

async function begin() {
  const [account, clusters] = await Promise.all([get("/account"), get("/clusters")]);
  setCsrf(account.csrf);
  state.user = account;
  state.clusters = clusters;
  state.cluster = localStorage.getItem("cluster") ?? "";
  if (!clusters.some((each) => each.name === state.cluster)) state.cluster = clusters[0]?.name ?? "";
  buildShell();
  onDraw((info, params) => {
    localStorage.setItem("cluster", state.cluster);
    onPage(info, params);
    refreshCounts();
  });
  setInterval(() => document.hidden || refreshCounts(), 5000);
  await start();
}

begin().catch((problem) => {
  console.error(problem);
  show(document.getElementById("console"), problemBanner(problem));
});

export { base };
