type Shares = readonly [across: number, down: number];

/** What pointers do: distances and places are shares of the element's width and height. */
export interface PointerGestures {
  onPan(shares: Shares): void;
  onPinch(factor: number, at: Shares): void;
  onTap(at: Shares): void;
}

/** A pointer that moved less than this many pixels has tapped. */
const TAP_PIXELS = 4;

/** One pointer pans, two pinch, one that stays taps. */
export function followPointers(target: HTMLElement, gestures: PointerGestures): void {
  const pointers = new Map<number, { x: number; y: number }>();
  let moved = 0;
  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (pointers.size === 0) moved = 0;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    target.setPointerCapture(event.pointerId);
  });
  target.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    const { width, height, left } = target.getBoundingClientRect();
    if (other) {
      const [old, wide] = [Math.abs(before.x - other.x), Math.abs(now.x - other.x)].map((each) =>
        Math.max(8, each),
      ) as [number, number];
      gestures.onPinch(old / wide, [((now.x + other.x) / 2 - left) / width, 0.5]);
    } else if (moved > TAP_PIXELS) gestures.onPan([(before.x - now.x) / width, (before.y - now.y) / height]);
    pointers.set(event.pointerId, now);
  });
  const end = (event: PointerEvent): void => {
    if (!pointers.delete(event.pointerId) || event.type === "pointercancel" || moved > TAP_PIXELS || pointers.size > 0)
      return;
    const { width, height, left, top } = target.getBoundingClientRect();
    gestures.onTap([(event.clientX - left) / width, (event.clientY - top) / height]);
  };
  target.addEventListener("pointerup", end);
  target.addEventListener("pointercancel", end);
}

export interface WheelGestures {
  onPan(shares: Shares): void;
  onZoom(factor: number, at: Shares): void;
  onZoomRanks(factor: number, at: Shares): void;
}

/** With Control, as a pinch on a touchpad has it, the wheel scales time; with Shift it pans; with Alt it scales ranks. Else the page scrolls. */
export function followWheel(target: HTMLElement, gestures: WheelGestures): void {
  target.addEventListener(
    "wheel",
    (event) => {
      const isZoom = event.ctrlKey || event.metaKey;
      if (!isZoom && !event.shiftKey && !event.altKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      const { width, height, left, top } = target.getBoundingClientRect();
      const at: Shares = [(event.clientX - left) / width, (event.clientY - top) / height];
      const distance = event.deltaY === 0 ? event.deltaX : event.deltaY;
      const factor = Math.exp(Math.max(-1, Math.min(1, distance / 300)));
      if (isZoom) gestures.onZoom(factor, at);
      else if (event.altKey) gestures.onZoomRanks(factor, at);
      else gestures.onPan([(event.shiftKey ? distance : event.deltaX) / width, 0]);
    },
    { passive: false },
  );
}
