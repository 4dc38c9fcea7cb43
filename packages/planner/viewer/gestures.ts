type ViewportFractions = readonly [across: number, down: number];

/** Actions of pointers. Distances and positions are fractions of the element's width and height. */
export interface PointerGestures {
  onPan(offset: ViewportFractions): void;
  onPinch(factor: number, center: ViewportFractions): void;
  onTap(position: ViewportFractions): void;
}

/** A pointer that moved by at most this many pixels is a tap. */
const MAX_TAP_PIXELS = 4;

/** Adds gestures: one pointer pans, two pointers pinch, and a pointer that does not move taps. */
export function addPointerGestures(target: HTMLElement, gestures: PointerGestures): void {
  const pointers = new Map<number, { x: number; y: number }>();
  let movedPixels = 0;
  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (pointers.size === 0) movedPixels = 0;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    target.setPointerCapture(event.pointerId);
  });
  target.addEventListener("pointermove", (event) => {
    const previous = pointers.get(event.pointerId);
    if (!previous) return;
    const current = { x: event.clientX, y: event.clientY };
    movedPixels += Math.abs(current.x - previous.x) + Math.abs(current.y - previous.y);
    const otherPointer = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    const { width, height, left } = target.getBoundingClientRect();
    if (otherPointer) {
      const [previousDistance, distance] = [
        Math.abs(previous.x - otherPointer.x),
        Math.abs(current.x - otherPointer.x),
      ].map((each) => Math.max(8, each)) as [number, number];
      gestures.onPinch(previousDistance / distance, [((current.x + otherPointer.x) / 2 - left) / width, 0.5]);
    } else if (movedPixels > MAX_TAP_PIXELS)
      gestures.onPan([(previous.x - current.x) / width, (previous.y - current.y) / height]);
    pointers.set(event.pointerId, current);
  });
  const onPointerEnd = (event: PointerEvent): void => {
    if (
      !pointers.delete(event.pointerId) ||
      event.type === "pointercancel" ||
      movedPixels > MAX_TAP_PIXELS ||
      pointers.size > 0
    )
      return;
    const { width, height, left, top } = target.getBoundingClientRect();
    gestures.onTap([(event.clientX - left) / width, (event.clientY - top) / height]);
  };
  target.addEventListener("pointerup", onPointerEnd);
  target.addEventListener("pointercancel", onPointerEnd);
}

export interface WheelGestures {
  onPan(offset: ViewportFractions): void;
  onZoom(factor: number, center: ViewportFractions): void;
  onZoomRanks(factor: number, center: ViewportFractions): void;
}

/**
 * Adds wheel gestures. With Control, which a pinch on a touchpad also sends, the wheel zooms in time; with Shift it
 * pans; with Alt it zooms in ranks. Otherwise the page scrolls.
 */
export function addWheelGestures(target: HTMLElement, gestures: WheelGestures): void {
  target.addEventListener(
    "wheel",
    (event) => {
      const isZoom = event.ctrlKey || event.metaKey;
      if (!isZoom && !event.shiftKey && !event.altKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      const { width, height, left, top } = target.getBoundingClientRect();
      const position: ViewportFractions = [(event.clientX - left) / width, (event.clientY - top) / height];
      const distance = event.deltaY === 0 ? event.deltaX : event.deltaY;
      const factor = Math.exp(Math.max(-1, Math.min(1, distance / 300)));
      if (isZoom) gestures.onZoom(factor, position);
      else if (event.altKey) gestures.onZoomRanks(factor, position);
      else gestures.onPan([(event.shiftKey ? distance : event.deltaX) / width, 0]);
    },
    { passive: false },
  );
}
