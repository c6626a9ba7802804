// Where a device keeps what it knows: IndexedDB in browsers, memory elsewhere. All is read once, then written through.

const STORES = ["meta", "waiting", "queue", "journal"];

/** Keeps everything in memory: for tests, and for Node. `content` outlives a device that is opened on it again. */
export class MemoryStore {
  constructor() {
    this.content = Object.fromEntries(STORES.map((name) => [name, new Map()]));
  }

  async open() {
    return Object.fromEntries(STORES.map((name) => [name, new Map(structuredClone([...this.content[name]]))]));
  }

  /** Do all changes or none; a change is a store, a key and a value, undefined to delete it. */
  async write(changes) {
    for (const [store, key, value] of structuredClone(changes)) {
      if (value === undefined) this.content[store].delete(key);
      else this.content[store].set(key, value);
    }
  }

  close() {}
}

/** Keeps everything in a database of this origin. */
export class IndexedDBStore {
  #name; #db;

  constructor(name) {
    this.#name = name;
  }

  async open() {
    const opening = indexedDB.open(this.#name, 1);
    opening.onupgradeneeded = () => STORES.forEach((name) => opening.result.createObjectStore(name));
    this.#db = await done(opening);
    const transaction = this.#db.transaction(STORES);
    const read = async (name) => {
      const store = transaction.objectStore(name);
      const [keys, values] = await Promise.all([done(store.getAllKeys()), done(store.getAll())]);
      return [name, new Map(keys.map((key, k) => [key, values[k]]))];
    };
    return Object.fromEntries(await Promise.all(STORES.map(read)));
  }

  write(changes) {
    const transaction = this.#db.transaction(STORES, "readwrite", { durability: "strict" });
    for (const [store, key, value] of changes) {
      if (value === undefined) transaction.objectStore(store).delete(key);
      else transaction.objectStore(store).put(value, key);
    }
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
    });
  }

  close() {
    this.#db?.close();
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
