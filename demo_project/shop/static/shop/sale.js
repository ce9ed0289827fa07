"use strict";

const SVG = "http://www.w3.org/2000/svg";
const LANES = ["admitted", "limited", "blocked"];
const find = (selector) => document.querySelector(selector);

function drawLane(name, counts) {
  const lane = find(`.lane.${name}`);
  const svg = lane.querySelector("svg");
  const top = Math.max(...counts, 1);
  svg.setAttribute("viewBox", `0 0 ${counts.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren(...counts.map((count, index) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = count / top;
    bar.setAttribute("x", index + 0.1);
    bar.setAttribute("y", 1 - height);
    bar.setAttribute("width", 0.8);
    bar.setAttribute("height", height);
    return bar;
  }));
  lane.querySelector("b").textContent = counts.at(-1) ?? "–";
}

function drawStock(coupon) {
  find("#title").textContent = coupon.title;
  find("#stock").textContent = coupon.stock;
  find("#grabbed").textContent = coupon.grabbed;
  find("#sold").max = coupon.stock + coupon.grabbed || 1;
  find("#sold").value = coupon.grabbed;
}

function bannedRow(entry) {
  const row = document.createElement("tr");
  const until = entry.until ? new Date(entry.until).toLocaleTimeString() : "–";
  for (const text of [entry.identity, until, entry.reason]) {
    row.insertCell().textContent = text;
  }
  return row;
}

function draw(sale) {
  if (sale.coupons.length) drawStock(sale.coupons[0]);
  for (const name of LANES) drawLane(name, sale.seconds.map((second) => second[name]));
  const banned = sale.banned.length ? sale.banned : [{ identity: "Nobody", until: null, reason: "" }];
  find("#banned").replaceChildren(...banned.map(bannedRow));
}

async function refresh() {
  let answered = false;
  try {
    const answer = await fetch(document.body.dataset.feed);
    if (answer.ok) draw(await answer.json());
    answered = answer.ok || answer.status === 429;
  } catch {
    // The network's errors carry no text for people: the line at the foot of the page says it.
  }
  find("#trouble").hidden = answered;
  setTimeout(refresh, 1000);
}

refresh();
