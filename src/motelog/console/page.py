"""The first page: plain HTML with its style and script inside, nothing from elsewhere.

Owns: the page, the header that lets a browser run this script and no other.
Must not touch: what is shown; the script reads it from /status every two seconds.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2733;--dim:#5d6b7a;--line:#dde3ea;--back:#f4f6f9;--card:#fff;
--good:#157f4b;--bad:#b3261e;--warn:#fdecea;--bar:#3b76c4}
@media (prefers-color-scheme:dark){:root{--ink:#e7edf4;--dim:#9aa8b7;--line:#2b3642;--back:#11161c;
--card:#1a212a;--good:#3ecf8e;--bad:#ff8a80;--warn:#3a1d1c;--bar:#6aa3ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 16px 40px}
header{display:flex;flex-wrap:wrap;align-items:center;gap:8px 14px;margin-bottom:18px}
h1{font-size:1.5rem;margin:0}
h2{font-size:.8rem;letter-spacing:.06em;text-transform:uppercase;color:var(--dim);margin:0 0 10px}
.state{font-weight:600;padding:3px 12px;border-radius:99px;color:#fff;background:var(--dim)}
.state.good{background:#157f4b}.state.bad{background:#b3261e}
.dim{color:var(--dim);font-size:.9rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;
margin-bottom:14px}
#faults{background:var(--warn);border-color:var(--bad)}
#faults ul{margin:0;padding-left:18px}#faults li{overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:14px}
.tile b{display:block;font-size:1.65rem;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{overflow-wrap:anywhere}
.bar{position:relative;height:12px;border-radius:6px;background:var(--line);margin:8px 0;
overflow:hidden}
.bar i{position:absolute;left:0;top:0;bottom:0;background:var(--bar)}
.bar.bad i{background:var(--bad)}
.bar u{position:absolute;top:0;bottom:0;width:2px;background:var(--ink)}
dl{display:grid;grid-template-columns:auto 1fr;gap:6px 18px;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere;font-family:ui-monospace,Menlo,Consolas,
"DejaVu Sans Mono",monospace;font-size:.93rem}
nav{display:flex;flex-wrap:wrap;gap:8px 20px}
a{color:var(--bar)}
[hidden]{display:none!important}
"""

_SCRIPT: Final = """
"use strict";
const NAMES = {mqtt_in: "MQTT in /s", mqtt_out: "MQTT out /s", mqtt_refused: "refused /s",
  queue_in: "queues in /s", queue_out: "queues out /s"};
const ROLES = {gateway: "MQTT", broker: "broker", namesrv: "name server", console: "console"};
const PERIOD_MS = 2000, ANSWER_WITHIN_MS = 5000;
const at = id => document.getElementById(id);
let last = null;

function show(id, text) { at(id).textContent = text; }
function count(number) {
  return number.toLocaleString("en", {maximumFractionDigits: number < 10 ? 1 : 0});
}
function size(bytes) {
  for (const [unit, one] of [["TiB", 2**40], ["GiB", 2**30], ["MiB", 2**20]])
    if (bytes >= one) return (bytes / one).toFixed(1) + " " + unit;
  return bytes + " bytes";
}
function span(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(0, parts.findIndex(([, one]) => seconds >= one));
  let text = "";
  for (const [unit, one] of parts.slice(seconds < 1 ? 3 : first, (seconds < 1 ? 3 : first) + 2)) {
    text += " " + Math.floor(seconds / one) + " " + unit;
    seconds %= one;
  }
  return text;
}
function element(parent, name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  parent.appendChild(made);
  return made;
}
function tiles(id, pairs) {
  const box = at(id);
  box.replaceChildren();
  for (const [name, value] of pairs) {
    const tile = element(box, "div", "");
    tile.className = "tile";
    element(tile, "b", value);
    element(tile, "span", name).className = "dim";
  }
}
function state(text, kind) {
  show("state", text);
  at("state").className = "state " + kind;
  document.title = "Motelog: " + text;
}
function faults(list) {
  at("faults").hidden = list.length === 0;
  at("reasons").replaceChildren();
  for (const [name, text] of list) element(at("reasons"), "li", name + ": " + text);
}
function draw(now) {
  state(now.ready ? "ready" : "not ready", now.ready ? "good" : "bad");
  show("about", "version " + now.version + ", up" + span(now.up_s));
  faults(Object.entries(now.faults));
  const seconds = last ? (now.time_ms - last.time_ms) / 1000 : 0;
  tiles("rates", Object.keys(now.totals).map(name => {
    const more = last ? now.totals[name] - (last.totals[name] || 0) : -1;
    return [NAMES[name] || name, seconds > 0 && more >= 0 ? count(more / seconds) : "\\u2013"];
  }));
  at("traffic").hidden = Object.keys(now.totals).length === 0;
  tiles("counts", ["connections", "sessions", "subscriptions", "retained_messages",
    "queue_clients"].filter(name => name in now.now)
    .map(name => [name.replace("_", " "), count(now.now[name])]));
  at("clients").hidden = Object.keys(now.now).length === 0;
  at("disk").hidden = now.disk === null;
  if (now.disk) {
    const {total_bytes, free_bytes, reserve_bytes} = now.disk;
    const limit = Math.max(0, 1 - reserve_bytes / total_bytes), used = 1 - free_bytes / total_bytes;
    show("left", size(free_bytes) + " free of " + size(total_bytes) + " (" + (100 * used).toFixed(1)
      + " % full), messages are refused below " + size(reserve_bytes) + " free");
    show("kept", now.disk.retention_left_s === null
      ? "at the present rate there is room for as long as messages are kept"
      : "at the present rate messages will have to be removed before their time in" +
        span(now.disk.retention_left_s));
    at("used").style.width = 100 * used + "%";
    at("limit").style.left = "calc(" + 100 * limit + "% - 1px)";
    at("bar").className = free_bytes < reserve_bytes ? "bar bad" : "bar";
  }
  tiles("groups", now.lag.map(one => [one.group + " in " + one.topic, count(one.messages) +
    (one.seconds === undefined ? "" : " (" + span(one.seconds).trim() + ")")]));
  at("lag").hidden = now.lag.length === 0;
  at("addresses").replaceChildren();
  const places = Object.entries(now.addresses).map(([role, text]) => [ROLES[role] || role, text]);
  if (now.data) places.push(["messages", now.data]);
  for (const [name, text] of places) {
    element(at("addresses"), "dt", name);
    element(at("addresses"), "dd", text);
  }
}
async function refresh() {
  try {
    const answer = await fetch("status", {signal: AbortSignal.timeout(ANSWER_WITHIN_MS)});
    const now = await answer.json();
    draw(now);
    last = now;
  } catch (error) {
    last = null;
    state("no answer", "bad");
    faults([["process", "it does not answer; is it running? motelog dev"]]);
  }
  setTimeout(refresh, last && at("rates").textContent.includes("\\u2013") ? 500 : PERIOD_MS);
}
refresh();
"""

HTML: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Motelog</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<main>
<header><h1>Motelog</h1><span id="state" class="state" role="status">asking</span>
<span id="about" class="dim"></span></header>
<noscript><section>This page needs JavaScript; <a href="status">status</a> has the same as JSON.
</section></noscript>
<section id="faults" hidden><h2>What is wrong</h2><ul id="reasons"></ul></section>
<section id="traffic" hidden><h2>Messages</h2><div id="rates" class="tiles"></div></section>
<section id="clients" hidden><h2>Clients</h2><div id="counts" class="tiles"></div></section>
<section id="disk" hidden><h2>Disk</h2>
<div id="bar" class="bar"><i id="used"></i><u id="limit"></u></div>
<div id="left" class="dim"></div><div id="kept" class="dim"></div></section>
<section id="lag" hidden><h2>Groups behind, in messages and time</h2>
<div id="groups" class="tiles"></div></section>
<section><h2>Addresses</h2><dl id="addresses"></dl></section>
<section><h2>More</h2><nav>
<a href="health/ready">readiness</a><a href="health/live">liveness</a><a href="metrics">metrics</a>
<a href="api/v1/clients">clients</a><a href="api/v1/sessions">sessions</a>
<a href="api/v1/retained">retained messages</a><a href="status">status</a>
<a href="api/v1/openapi.json">admin API</a>
</nav></section>
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(_SCRIPT)}",
            f"style-src {_hash(_STYLE)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "Cache-Control": "no-cache",
}
