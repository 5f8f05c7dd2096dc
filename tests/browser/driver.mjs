// A browser that obeys lines of JSON on stdin: {"do": name, ...} -> {"result": ...} or {"error": text}. browser.py speaks it.
import {createRequire} from "node:module";
import {createInterface} from "node:readline";

const [playwright, executablePath, ...further] = process.argv.slice(2);
const {chromium} = createRequire(import.meta.url)(playwright);
const patience = {timeout: 120000};  // on a busy machine
const browser = await chromium.launch({executablePath, ...patience, args: ["--no-sandbox", ...further]});
let context, page, requests, errors;

// A page without cookies, cache or history, and nothing noted of it.
async function renew() {
  await context?.close();
  context = await browser.newContext({viewport: {width: 1280, height: 1000}});
  page = await context.newPage();
  page.setDefaultTimeout(patience.timeout);
  const [ownRequests, ownErrors] = [requests, errors] = [[], []];
  page.on("request", request => ownRequests.push({url: request.url(), at: Date.now()}));
  page.on("console", message => { if (message.type() === "error") ownErrors.push(message.text()); });
  page.on("pageerror", error => ownErrors.push(String(error)));
}

// What a frame shows; null if the browser takes it away meanwhile, as it does where a page may not be framed.
async function shown(frame) {
  try {
    return {url: frame.url(), text: await frame.evaluate("document.body?.innerText")};
  } catch (error) {
    if (!frame.isDetached()) throw error;
    return null;
  }
}

await renew();

const actions = {
  renew,
  open: async ({url}) => (await page.goto(url)).status(),
  evaluate: ({script}) => page.evaluate(script),
  press: ({key}) => page.keyboard.press(key),
  move: ({x, y}) => page.mouse.move(x, y),
  press_at: ({x, y}) => page.mouse.click(x, y),
  click: ({selector}) => page.click(selector),
  scheme: ({scheme}) => page.emulateMedia({colorScheme: scheme}),
  size: ({width, height}) => page.setViewportSize({width, height}),
  screenshot: ({path, whole, selector}) => selector ? page.locator(selector).screenshot({path}) : page.screenshot({path, fullPage: whole}),
  requests: () => requests,
  errors: () => errors,
  cookies: () => context.cookies(),
  add_cookie: ({cookie}) => context.addCookies([cookie]),
  frames: async () => (await Promise.all(page.frames().map(shown))).filter(frame => frame),
  history: async () => (await (await context.newCDPSession(page)).send("Page.getNavigationHistory")).entries.map(({url}) => url),
};

for await (const line of createInterface({input: process.stdin})) {
  const order = JSON.parse(line);
  let answer;
  try {
    answer = {result: await actions[order.do](order) ?? null};
  } catch (error) {
    answer = {error: String(error)};
  }
  console.log(JSON.stringify(answer, (_, value) => Buffer.isBuffer(value) ? undefined : value));
}
await browser.close();
