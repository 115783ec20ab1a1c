// Requests to the console's server. A failed request raises an ApiError, whose message is for people.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export const session = { csrf: "", readOnly: false };

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error || `The console answered with status ${status}.`);
    this.status = status;
    this.code = body.code;
  }
}

export async function api(path, { method = "GET", body } = {}) {
  const headers = {};
  if (method !== "GET") headers["x-csrf-token"] = session.csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(`/api/${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, { error: "The console does not answer. Is it still running?" });
  }
  const data = await response.json().catch(() => ({}));
  if (response.status === 401 && path !== "login") window.dispatchEvent(new Event("logged-out"));
  if (!response.ok) throw new ApiError(response.status, data);
  return data;
}

export async function openSession() {
  return Object.assign(session, await api("session"));
}

// What a GET returns, read again every `every` ms while the page is visible.
export function useData(path, every = 0) {
  const [state, setState] = useState({ data: null, error: null });
  const latest = useRef(path);
  latest.current = path;
  const read = useCallback(async () => {
    if (!path) return;
    try {
      const data = await api(path);
      if (latest.current === path) setState({ data, error: null });
    } catch (error) {
      if (latest.current === path) setState((old) => ({ data: old.data, error }));
    }
  }, [path]);
  useEffect(() => {
    read();
    if (!every) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && read(), every);
    return () => clearInterval(timer);
  }, [read, every]);
  return { ...state, reload: read };
}

export function query(values) {
  const text = new URLSearchParams(Object.entries(values).filter(([, v]) => v !== "" && v !== null && v !== undefined && v !== false));
  return text.size ? `?${text}` : "";
}
export const part = encodeURIComponent;
