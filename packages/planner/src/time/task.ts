/** Something that takes time: a kernel, a host that enqueues, a message in transfer, or a timer. */
export interface Task {
  readonly kind: "compute" | "host" | "flow" | "timer";
  /** Time when it ends at current rates. */
  endTime: number;
  /** Index in the queue; −1 if it is not there. */
  queueIndex: number;
}

/** Tasks by end time, in a binary heap that finds a task again when its end time changes. */
export class TaskQueue<T extends Task> {
  readonly #heap: T[] = [];
  /** End time of each task of the heap, contiguous in memory, whereas tasks are scattered. */
  readonly #endTimes: number[] = [];

  get size(): number {
    return this.#heap.length;
  }

  /** The task that ends first. */
  get first(): T | undefined {
    return this.#heap[0];
  }

  /** Inserts a task, or moves it when its end time has changed. */
  insertOrMove(task: T): void {
    if (task.queueIndex < 0) {
      task.queueIndex = this.#heap.push(task) - 1;
      this.#endTimes.push(task.endTime);
    }
    this.#siftUp(task);
    this.#siftDown(task);
  }

  /** Removes the task that ends first. */
  pop(): T | undefined {
    const first = this.#heap[0];
    if (first === undefined) return undefined;
    const last = this.#heap.pop()!;
    this.#endTimes.pop();
    if (last !== first) {
      last.queueIndex = 0;
      this.#siftDown(last);
    }
    first.queueIndex = -1;
    return first;
  }

  #siftUp(task: T): void {
    const endTimes = this.#endTimes;
    const { endTime } = task;
    let index = task.queueIndex;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (endTimes[parent]! <= endTime) break;
      this.#place(this.#heap[parent]!, index, endTimes[parent]!);
      index = parent;
    }
    this.#place(task, index, endTime);
  }

  #siftDown(task: T): void {
    const endTimes = this.#endTimes;
    const { endTime } = task;
    let index = task.queueIndex;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= endTimes.length) break;
      if (child + 1 < endTimes.length && endTimes[child + 1]! < endTimes[child]!) child++;
      if (endTimes[child]! >= endTime) break;
      this.#place(this.#heap[child]!, index, endTimes[child]!);
      index = child;
    }
    this.#place(task, index, endTime);
  }

  #place(task: T, index: number, endTime: number): void {
    this.#heap[index] = task;
    this.#endTimes[index] = endTime;
    task.queueIndex = index;
  }
}
