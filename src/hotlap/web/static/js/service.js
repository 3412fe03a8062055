// Asking the service: with the token where one is needed, and without ever giving up when it is away.

import { say } from "./events.js";

const TOKEN = "hotlap.token";
const POLL_MS = 1000;
const SLOWEST_MS = 5000;
const HIDDEN_MS = 5000;

export class Refused extends Error {
  constructor(status, text, retryAfterS) {
    super(text);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/** No answer came at all: the service is away, or the network is. */
export class Away extends Error {}

let away = false;
let asking = null;
let waiters = [];
let askToken = () => Promise.reject(new Refused(401, "", 0));

export const isAway = () => away;
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
/** Who is asked for a token when the service wants one; gives it, or rejects. */
export const setTokenAsker = (ask) => (askToken = ask);

/** A token from the user; all requests that need one wait for the same answer. */
function newToken(refused) {
  if (sessionStorage.getItem(TOKEN) !== refused) return Promise.resolve();
  asking ??= askToken(refused !== null)
    .then((token) => sessionStorage.setItem(TOKEN, token))
    .finally(() => (asking = null));
  return asking;
}

function isBack() {
  if (!away) return;
  away = false;
  for (const wake of waiters.splice(0)) wake();
  say("service");
}

function isGone() {
  if (away) return;
  away = true;
  say("service");
}

/** Waits until the service answers again. */
export const untilBack = () => (away ? new Promise((wake) => waiters.push(wake)) : Promise.resolve());

async function refusal(status, header, text) {
  let said = text;
  try {
    said = JSON.parse(text).error ?? text;
  } catch {
    // A proxy in between answers in its own words.
  }
  return new Refused(status, said || String(status), Number(header("Retry-After")) || 0);
}

/** The answer to one request; raises Away without one, and Refused for an error. */
export async function ask(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      isGone();
      throw new Away(error.message);
    }
    isBack();
    if (answer.ok) return answer;
    if (answer.status !== 401) {
      throw await refusal(answer.status, (name) => answer.headers.get(name), await answer.text());
    }
    await newToken(token);
  }
}

export const askJson = async (path, options) => (await ask(path, options)).json();

export const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

/** Sends a form and tells how much of it has left; fetch() cannot tell that. */
export async function upload(path, form, onSent, signal) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const request = await send(path, form, token, onSent, signal);
    isBack();
    if (request.status >= 200 && request.status < 300) return JSON.parse(request.responseText);
    if (request.status !== 401) {
      throw await refusal(request.status, (name) => request.getResponseHeader(name), request.responseText);
    }
    await newToken(token);
  }
}

function send(path, form, token, onSent, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    signal.addEventListener("abort", stop, { once: true });
    request.upload.addEventListener("progress", (event) => onSent(event.loaded / event.total));
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
    request.addEventListener("error", () => {
      isGone();
      reject(new Away(path));
    });
    request.addEventListener("loadend", () => signal.removeEventListener("abort", stop));
    request.open("POST", path);
    if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.send(form);
  });
}

let pollNow = () => {};
export const tryNow = () => pollNow();

/** Asks for the status again and again, less often while nothing answers; `tell` hears each. */
export async function poll(tell) {
  let pause = POLL_MS;
  for (;;) {
    try {
      tell(await askJson("api/v1/status"));
      pause = document.hidden ? HIDDEN_MS : POLL_MS;
    } catch (error) {
      // Whatever it is, such as a proxy that answers in place of the service: it is asked again.
      if (!(error instanceof Refused)) isGone();
      pause = Math.min(pause * 1.5, SLOWEST_MS);
    }
    await new Promise((resolve) => {
      pollNow = resolve;
      setTimeout(resolve, pause);
    });
  }
}
