/** Settings of a load. */
export interface LoadSettings {
  readonly url: string;
  readonly model: string;
  /** Number of concurrent requests. */
  readonly clients: number;
  /** Total number of requests, including cancelled and malformed ones. */
  readonly requests: number;
  /** Number of requests that are cancelled once half of their tokens have been received. */
  readonly numCancelled: number;
  readonly numMalformed: number;
  /** Number of tokens of each text. */
  readonly tokens: number;
}

/** Results of a load. */
export interface LoadReport {
  /** Number of complete texts. Each must equal the text of the same request alone. */
  readonly completed: number;
  readonly cancelled: number;
  /** Number of malformed requests by expected status. */
  readonly refused: Readonly<Record<string, number>>;
  /** Descriptions of unexpected results. */
  readonly faults: readonly string[];
  readonly seconds: number;
  readonly tokensPerSecond: number;
  /** Latency of complete texts, in milliseconds. */
  readonly latency: { readonly median: number; readonly p95: number; readonly longest: number };
  /** Time to the first token of a stream, in milliseconds. */
  readonly firstToken: { readonly median: number; readonly p95: number; readonly longest: number };
}

const prompts = ["In the beginning", "And it came to pass", "The LORD", "Blessed", "Verily", "Woe", "Behold", "He"];

/** Every third request has temperature 0, so requests repeat after this many. */
const NUM_DISTINCT_REQUESTS = 3 * prompts.length;

const jsonHeaders = { "content-type": "application/json" };

/** Returns malformed requests and the status with which each is rejected. */
const createMalformedRequests = (
  model: string,
): readonly (readonly [status: number, path: string, init: RequestInit])[] => {
  const createPostInit = (body: unknown): RequestInit => ({
    method: "POST",
    headers: jsonHeaders,
    body: JSON.stringify(body),
  });
  return [
    [400, "/v1/completions", { method: "POST", headers: jsonHeaders, body: '{"model":' }],
    [400, "/v1/completions", createPostInit([])],
    [400, "/v1/completions", createPostInit({ model })],
    [400, "/v1/completions", createPostInit({ model, prompt: "a", n: 2 })],
    [400, "/v1/completions", createPostInit({ model, prompt: "a", temperature: -1 })],
    [400, "/v1/completions", createPostInit({ model, prompt: "a", max_tokens: 1e6 })],
    [400, "/v1/completions", createPostInit({ model, prompt: [1e6] })],
    [400, "/v1/completions", createPostInit({ model, prompt: "a", tempreature: 1 })],
    [400, "/v1/chat/completions", createPostInit({ model, messages: [{ content: "a" }] })],
    [404, "/v1/completions", createPostInit({ model: "another", prompt: "a" })],
    [404, "/v1/embeddings", createPostInit({ model, input: "a" })],
    [405, "/v1/completions", {}],
    [413, "/v1/completions", createPostInit({ model, prompt: "a".repeat(2 ** 21) })],
    [415, "/v1/completions", { method: "POST", headers: { "content-type": "text/plain" }, body: "a" }],
  ];
};

type LoadRequestKind = "whole" | "stream" | "cancelled" | "malformed";

/** Returns the kind of each request. The kinds are mixed evenly. */
function assignKinds({ requests, numCancelled, numMalformed }: LoadSettings): readonly LoadRequestKind[] {
  const kinds = Array.from({ length: requests }, (_, i): LoadRequestKind => (i % 2 === 0 ? "whole" : "stream"));
  const assignKindEvenly = (kind: LoadRequestKind, count: number): void => {
    const freeIndices = kinds.flatMap((requestKind, i) =>
      requestKind === "whole" || requestKind === "stream" ? [i] : [],
    );
    for (let i = 0; i < count; i++) kinds[freeIndices[Math.floor(((i + 0.5) * freeIndices.length) / count)]!] = kind;
  };
  assignKindEvenly("cancelled", numCancelled);
  assignKindEvenly("malformed", numMalformed);
  return kinds;
}

/** Yields the JSON of each event of a stream, without [DONE]. */
export async function* readEvents(response: Response): AsyncGenerator<StreamEvent> {
  let bufferedText = "";
  for await (const value of response.body!.pipeThrough(new TextDecoderStream())) {
    const events = (bufferedText + value).split("\n\n");
    bufferedText = events.pop()!;
    for (const eventText of events)
      if (eventText !== "data: [DONE]") yield JSON.parse(eventText.slice("data: ".length)) as StreamEvent;
  }
}

/** Content of a stream event. */
export interface StreamEvent {
  readonly choices?: readonly {
    readonly text?: string;
    readonly delta?: { readonly content?: string };
    readonly finish_reason: string | null;
  }[];
  readonly usage?: { readonly completion_tokens: number } | null;
  readonly error?: { readonly message: string };
}

interface CompletionResponse {
  readonly choices: readonly { readonly text: string; readonly finish_reason: string }[];
  readonly usage: { readonly completion_tokens: number };
}

/** Sends requests of all kinds, and compares each text with that of the same request on an otherwise idle server. */
export async function runLoad(settings: LoadSettings): Promise<LoadReport> {
  const soloTexts: string[] = [];
  for (let i = 0; i < NUM_DISTINCT_REQUESTS; i++) soloTexts.push((await requestWholeText(settings, i)).text);
  const load = new Load(settings, soloTexts);
  const kinds = assignKinds(settings);
  const startTime = performance.now();
  let nextIndex = 0;
  const runClient = async (): Promise<void> => {
    while (nextIndex < kinds.length) {
      const i = nextIndex++;
      await load.run(kinds[i]!, i);
    }
  };
  await Promise.all(Array.from({ length: settings.clients }, runClient));
  return load.createReport((performance.now() - startTime) / 1000);
}

/** Sends the requests of a load, and collects their results. */
class Load {
  readonly #settings: LoadSettings;
  /** The expected text of each distinct request. */
  readonly #soloTexts: readonly string[];
  readonly #malformedRequests: ReturnType<typeof createMalformedRequests>;
  readonly #latencies: number[] = [];
  readonly #firstTokenTimes: number[] = [];
  readonly #faults: string[] = [];
  readonly #refusalCountsByStatus: Record<string, number> = {};
  #generatedTokens = 0;
  #numMalformed = 0;
  #numCompleted = 0;
  #numCancelled = 0;

  constructor(settings: LoadSettings, soloTexts: readonly string[]) {
    this.#settings = settings;
    this.#soloTexts = soloTexts;
    this.#malformedRequests = createMalformedRequests(settings.model);
  }

  /** Sends request `i`. Records its result, or its error as a fault. */
  async run(kind: LoadRequestKind, i: number): Promise<void> {
    try {
      if (kind === "malformed") await this.#runMalformed();
      else if (kind === "cancelled") await this.#runCancelled(i);
      else await this.#runComplete(kind, i);
    } catch (error) {
      this.#faults.push(`request ${i}: ${(error as Error).message}`);
    }
  }

  async #runMalformed(): Promise<void> {
    const [status, path, init] = this.#malformedRequests[this.#numMalformed++ % this.#malformedRequests.length]!;
    this.#refusalCountsByStatus[status] = (this.#refusalCountsByStatus[status] ?? 0) + 1;
    const response = await fetch(this.#settings.url + path, init);
    const { error } = (await response.json()) as { readonly error?: { readonly message: string } };
    if (response.status === status && error?.message) return;
    this.#faults.push(
      `${path}: expected status ${status} and an error message, received ${response.status} and ${JSON.stringify(error)}`,
    );
  }

  async #runCancelled(i: number): Promise<void> {
    const expectedText = this.#soloTexts[i % this.#soloTexts.length]!;
    const text = await this.#stream(i, this.#settings.tokens / 2);
    // An end token may complete a text before half of its tokens.
    if (text === undefined || text === expectedText) this.#numCancelled++;
    else
      this.#faults.push(`cancelled request ${i}: expected a cancelled stream or "${expectedText}", received "${text}"`);
  }

  async #runComplete(kind: "whole" | "stream", i: number): Promise<void> {
    const expectedText = this.#soloTexts[i % this.#soloTexts.length]!;
    const startTime = performance.now();
    const text = kind === "whole" ? this.#count(await requestWholeText(this.#settings, i)) : await this.#stream(i);
    this.#latencies.push(performance.now() - startTime);
    this.#numCompleted++;
    if (text !== expectedText) this.#faults.push(`request ${i}: expected "${expectedText}", received "${text}"`);
  }

  /** Returns the text of a stream; undefined if it was cancelled after `maxEvents` events. */
  async #stream(i: number, maxEvents = Infinity): Promise<string | undefined> {
    const onFirstToken = (ms: number): void => void this.#firstTokenTimes.push(ms);
    const completion = await requestStreamedText(this.#settings, i, { maxEvents, onFirstToken });
    return completion && this.#count(completion);
  }

  #count({ text, tokens }: Completion): string {
    this.#generatedTokens += tokens;
    return text;
  }

  createReport(seconds: number): LoadReport {
    return {
      completed: this.#numCompleted,
      cancelled: this.#numCancelled,
      refused: this.#refusalCountsByStatus,
      faults: this.#faults,
      seconds,
      tokensPerSecond: this.#generatedTokens / seconds,
      latency: quantiles(this.#latencies),
      firstToken: quantiles(this.#firstTokenTimes),
    };
  }
}

interface Completion {
  /** The text, its finish reason and its number of tokens. */
  readonly text: string;
  readonly tokens: number;
}

const toCompletion = (text: string, finishReason: string, tokens: number): Completion => ({
  text: `${text} ${finishReason} ${tokens}`,
  tokens,
});

async function requestWholeText(settings: LoadSettings, i: number): Promise<Completion> {
  const response = await postCompletion(settings, createBody(settings, i));
  const { choices, usage } = (await response.json()) as CompletionResponse;
  return toCompletion(choices[0]!.text, choices[0]!.finish_reason, usage.completion_tokens);
}

/** Closes the connection after `maxEvents` events, and then resolves to undefined. */
async function requestStreamedText(
  settings: LoadSettings,
  i: number,
  { maxEvents, onFirstToken }: { readonly maxEvents: number; readonly onFirstToken: (ms: number) => void },
): Promise<Completion | undefined> {
  const startTime = performance.now();
  const body = { ...createBody(settings, i), stream: true, stream_options: { include_usage: true } };
  const response = await postCompletion(settings, body);
  let [text, numReceivedEvents, finishReason, tokens] = ["", 0, "", 0];
  for await (const event of readEvents(response)) {
    if (event.error) throw new Error(event.error.message);
    if (numReceivedEvents++ === 0) onFirstToken(performance.now() - startTime);
    text += event.choices![0]?.text ?? "";
    finishReason = event.choices![0]?.finish_reason ?? finishReason;
    tokens = event.usage?.completion_tokens ?? tokens;
    if (numReceivedEvents >= maxEvents) return undefined;
  }
  return toCompletion(text, finishReason, tokens);
}

/** Posts a completion request. Throws unless the status is 200. */
async function postCompletion({ url }: LoadSettings, body: object): Promise<Response> {
  const init = { method: "POST", headers: jsonHeaders, body: JSON.stringify(body) };
  const response = await fetch(`${url}/v1/completions`, init);
  if (response.status === 200) return response;
  throw new Error(`expected status 200, received ${response.status}: ${await response.text()}`);
}

function createBody({ model, tokens }: LoadSettings, i: number): object {
  return {
    ...{ model, prompt: prompts[i % prompts.length], max_tokens: tokens, seed: i % prompts.length },
    ...(i % 3 === 0 ? { temperature: 0 } : { temperature: 1, top_p: 0.95 }),
  };
}

function quantiles(values: readonly number[]): LoadReport["latency"] {
  const sortedValues = values.toSorted((a, b) => a - b);
  const quantileAt = (share: number): number =>
    Math.round(sortedValues[Math.floor(share * (sortedValues.length - 1))] ?? 0);
  return { median: quantileAt(0.5), p95: quantileAt(0.95), longest: quantileAt(1) };
}
