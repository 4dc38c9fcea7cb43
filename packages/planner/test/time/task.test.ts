import fc from "fast-check";
import { expect, test } from "vitest";
import { type Task, TaskQueue } from "../../src/time/task.ts";

const endTime = fc.integer({ min: 0, max: 30 });
const action = fc.oneof(
  // Most are insertions, so that the queue has several levels.
  { weight: 4, arbitrary: fc.record({ kind: fc.constant("insert" as const), endTime }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("move" as const), endTime, index: fc.nat() }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("pop" as const) }) },
);

test("a queue has the task that ends first at its head, while tasks are inserted, moved and removed", () => {
  fc.assert(
    fc.property(fc.array(action, { maxLength: 60, size: "max" }), (actions) => {
      const queue = new TaskQueue<Task>();
      const tasks: Task[] = [];
      for (const each of actions) {
        if (each.kind === "insert") {
          tasks.push({ kind: "timer", endTime: each.endTime, queueIndex: -1 });
          queue.insertOrMove(tasks.at(-1)!);
        } else if (each.kind === "move" && tasks.length > 0) {
          const task = tasks[each.index % tasks.length]!;
          task.endTime = each.endTime;
          queue.insertOrMove(task);
        } else if (each.kind === "pop") {
          const first = queue.pop();
          expect(first?.endTime).toBe(tasks.length > 0 ? Math.min(...tasks.map((task) => task.endTime)) : undefined);
          if (first) {
            expect(first.queueIndex).toBe(-1);
            tasks.splice(tasks.indexOf(first), 1);
          }
        }
        expect(queue.size).toBe(tasks.length);
        expect(queue.first?.endTime ?? Infinity).toBe(Math.min(...tasks.map((task) => task.endTime)));
      }
    }),
    { seed: 1 },
  );
});
