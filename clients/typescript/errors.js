// The errors of a service's answers, and of calls that have none.

/** The service refused a call, or did not answer; `status` is 0 where no answer came. */
export class ServiceError extends Error {
  constructor(status, code, message, { target = null, requestId = null, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.status = status;
    this.code = code;
    this.target = target;
    this.requestId = requestId;
  }

  toJSON() {
    const { name, status, code, message, target, requestId } = this;
    return { name, status, code, message, target, requestId };
  }
}

/** No answer came in time, or none that can be read. */
export class NoAnswerError extends ServiceError {}

/** The service does not accept the key, or not for this call (401, 403). */
export class KeyRefusedError extends ServiceError {}

/** A limit is reached (429). */
export class LimitError extends ServiceError {}

/** The service refused the request itself (other 4xx). */
export class RefusedError extends ServiceError {}

// Set here and not from the classes' names, which bundlers shorten.
for (const [name, kind] of Object.entries({
  ServiceError, NoAnswerError, KeyRefusedError, LimitError, RefusedError,
})) {
  const property = { value: name, configurable: true, writable: true };
  Object.defineProperty(kind.prototype, "name", property);
}

/** Return the error of a status, of the class that fits. */
export function errorOf(status, code, message, details) {
  if (status === 0) return new NoAnswerError(status, code, message, details);
  if (status === 401 || status === 403) return new KeyRefusedError(status, code, message, details);
  if (status === 429) return new LimitError(status, code, message, details);
  if (status >= 400 && status < 500) return new RefusedError(status, code, message, details);
  return new ServiceError(status, code, message, details);
}

export function unreadable(why, details) {
  const message = `the service's answer cannot be read: ${why}`;
  return errorOf(0, "unreadable_answer", message, details);
}

/** Return the error in an answer; a proxy's answer may have none. */
export function refusal(status, text, requestId) {
  try {
    const { code, message, target } = JSON.parse(text).error;
    return errorOf(status, code, message, { target, requestId });
  } catch {
    return errorOf(status, "unknown", text.slice(0, 200), { requestId });
  }
}

/** Return the innermost cause of a failure with its code: fetch itself has only "fetch failed". */
export function reasonOf(error) {
  let cause = error;
  while (cause?.cause instanceof Error) cause = cause.cause;
  const first = cause?.errors?.[0]; // of an AggregateError: one for each address of a name
  const code = cause?.code ?? first?.code;
  const message = String(cause?.message || first?.message || error?.message || cause);
  return typeof code === "string" && !message.includes(code) ? `${message} (${code})` : message;
}
