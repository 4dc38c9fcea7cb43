/** Something that takes time: a kernel, a host that enqueues, a message under way, or mere waiting. */
export interface Task {
  readonly kind: "compute" | "host" | "flow" | "timer";
  /** When it ends as things stand. */
  endTime: number;
  /** Its place in the queue; −1 if it is not there. */
  queueIndex: number;
}

/** Tasks by the time at which they end: a binary heap that finds a task again when its end moves. */
export class TaskQueue<T extends Task> {
  readonly #heap: T[] = [];

  get size(): number {
    return this.#heap.length;
  }

  /** The task that ends first. */
  get first(): T | undefined {
    return this.#heap[0];
  }

  /** Puts a task in, or moves it to where its time belongs. */
  set(task: T): void {
    if (task.queueIndex < 0) task.queueIndex = this.#heap.push(task) - 1;
    this.#siftDown(this.#siftUp(task));
  }

  /** Takes out the task that ends first. */
  pop(): T | undefined {
    const first = this.#heap[0];
    if (first === undefined) return undefined;
    const last = this.#heap.pop()!;
    if (last !== first) {
      this.#setIndex(last, 0);
      this.#siftDown(last);
    }
    first.queueIndex = -1;
    return first;
  }

  #siftUp(task: T): T {
    let { queueIndex } = task;
    while (queueIndex > 0) {
      const above = (queueIndex - 1) >> 1;
      const other = this.#heap[above]!;
      if (other.endTime <= task.endTime) break;
      this.#setIndex(other, queueIndex);
      queueIndex = above;
    }
    this.#setIndex(task, queueIndex);
    return task;
  }

  #siftDown(task: T): void {
    const heap = this.#heap;
    let { queueIndex } = task;
    for (;;) {
      let below = 2 * queueIndex + 1;
      if (below >= heap.length) break;
      if (below + 1 < heap.length && heap[below + 1]!.endTime < heap[below]!.endTime) below++;
      const other = heap[below]!;
      if (other.endTime >= task.endTime) break;
      this.#setIndex(other, queueIndex);
      queueIndex = below;
    }
    this.#setIndex(task, queueIndex);
  }

  #setIndex(task: T, index: number): void {
    this.#heap[index] = task;
    task.queueIndex = index;
  }
}
