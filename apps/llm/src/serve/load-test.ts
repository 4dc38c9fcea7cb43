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

async function throwStatus(response: Response): Promise<never> {
  throw new Error(`expected status 200, received ${response.status}: ${await response.text()}`);
}

/** Sends requests of all kinds, and compares each text with that of the same request on an otherwise idle server. */
export async function runLoad(settings: LoadSettings): Promise<LoadReport> {
  const { url, model, clients, tokens } = settings;
  const createBody = (i: number): object => ({
    ...{ model, prompt: prompts[i % prompts.length], max_tokens: tokens, seed: i % prompts.length },
    ...(i % 3 === 0 ? { temperature: 0 } : { temperature: 1, top_p: 0.95 }),
  });
  const postCompletion = (body: object): Promise<Response> =>
    fetch(`${url}/v1/completions`, { method: "POST", headers: jsonHeaders, body: JSON.stringify(body) });
  const requestWholeText = async (i: number): Promise<string> => {
    const response = await postCompletion(createBody(i));
    if (response.status !== 200) await throwStatus(response);
    const { choices, usage } = (await response.json()) as CompletionResponse;
    generatedTokens += usage.completion_tokens;
    return `${choices[0]!.text} ${choices[0]!.finish_reason} ${usage.completion_tokens}`;
  };
  /** Stops after `maxEvents` events, which closes the connection. */
  const requestStreamedText = async (i: number, maxEvents = Infinity): Promise<string> => {
    const startTime = performance.now();
    const response = await postCompletion({ ...createBody(i), stream: true, stream_options: { include_usage: true } });
    if (response.status !== 200) await throwStatus(response);
    let [text, numReceivedEvents, finishReason, completionTokens] = ["", 0, "", 0];
    for await (const event of readEvents(response)) {
      if (event.error) throw new Error(event.error.message);
      if (numReceivedEvents++ === 0) firstTokenTimes.push(performance.now() - startTime);
      text += event.choices![0]?.text ?? "";
      finishReason = event.choices![0]?.finish_reason ?? finishReason;
      completionTokens = event.usage?.completion_tokens ?? completionTokens;
      if (numReceivedEvents >= maxEvents) return "cancelled";
    }
    generatedTokens += completionTokens;
    return `${text} ${finishReason} ${completionTokens}`;
  };
  const [latencies, firstTokenTimes, faults]: [number[], number[], string[]] = [[], [], []];
  const refusalCountsByStatus: Record<string, number> = {};
  let [generatedTokens, numCompleted, numCancelled] = [0, 0, 0];
  // Prompts and temperatures repeat after 3 · prompts.length requests.
  const soloTexts: string[] = [];
  for (let i = 0; i < 3 * prompts.length; i++) soloTexts.push(await requestWholeText(i));
  [generatedTokens, firstTokenTimes.length] = [0, 0];
  const malformedCases = createMalformedRequests(model);
  const runRequest = async (kind: LoadRequestKind, i: number): Promise<void> => {
    if (kind === "malformed") {
      const [status, path, init] =
        malformedCases[
          Object.values(refusalCountsByStatus).reduce((sum, count) => sum + count, 0) % malformedCases.length
        ]!;
      refusalCountsByStatus[status] = (refusalCountsByStatus[status] ?? 0) + 1;
      const response = await fetch(url + path, init);
      const { error } = (await response.json()) as { readonly error?: { readonly message: string } };
      if (response.status !== status || !error?.message)
        faults.push(
          `${path}: expected status ${status} and an error message, received ${response.status} and ${JSON.stringify(error)}`,
        );
      return;
    }
    if (kind === "cancelled") {
      const streamOutcome = await requestStreamedText(i, tokens / 2);
      // An end token may complete a text before half of its tokens.
      if (streamOutcome === "cancelled" || streamOutcome === soloTexts[i % soloTexts.length]) numCancelled++;
      else
        faults.push(
          `cancelled request ${i}: expected "cancelled" or "${soloTexts[i % soloTexts.length]}", received "${streamOutcome}"`,
        );
      return;
    }
    const startTime = performance.now();
    const text = await (kind === "whole" ? requestWholeText(i) : requestStreamedText(i));
    latencies.push(performance.now() - startTime);
    numCompleted++;
    if (text !== soloTexts[i % soloTexts.length])
      faults.push(`request ${i}: expected "${soloTexts[i % soloTexts.length]}", received "${text}"`);
  };
  const requestKinds = assignKinds(settings);
  const startTime = performance.now();
  let nextRequestIndex = 0;
  const runClient = async (): Promise<void> => {
    while (nextRequestIndex < requestKinds.length) {
      const i = nextRequestIndex++;
      await runRequest(requestKinds[i]!, i).catch((error: unknown) =>
        faults.push(`request ${i}: ${(error as Error).message}`),
      );
    }
  };
  await Promise.all(Array.from({ length: clients }, runClient));
  const seconds = (performance.now() - startTime) / 1000;
  return {
    ...{ completed: numCompleted, cancelled: numCancelled, refused: refusalCountsByStatus, faults, seconds },
    tokensPerSecond: generatedTokens / seconds,
    latency: quantiles(latencies),
    firstToken: quantiles(firstTokenTimes),
  };
}

function quantiles(values: readonly number[]): LoadReport["latency"] {
  const sortedValues = values.toSorted((a, b) => a - b);
  const quantileAt = (share: number): number =>
    Math.round(sortedValues[Math.floor(share * (sortedValues.length - 1))] ?? 0);
  return { median: quantileAt(0.5), p95: quantileAt(0.95), longest: quantileAt(1) };
}
