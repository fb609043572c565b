//! The page of `ixc serve`, tested in a browser if one is installed.

use std::path::Path;

use ixc_testing::tools::CHROMIUM;
use serde_json::{Value, json};

use crate::support::browser::Browser;
use crate::support::server::Server;

/// Returns the path for a screenshot of the page, for manual inspection.
fn picture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"))
}

/// Starts a browser, or prints that the test did not run.
fn browser(test: &str) -> Option<Browser> {
    let found = CHROMIUM.find(&format!("page::{test}"))?;
    let mut browser = Browser::start(&found.program, &format!("page_{test}"));
    browser.resize(1280, 900, "light");
    Some(browser)
}

/// Makes the page add these fields to its requests.
fn with_fields(browser: &mut Browser, fields: &Value) {
    browser.evaluate(&format!(
        "{{ const own = window.fetch; window.fetch = (path, options) => {{
             if (options?.body) options = {{ ...options, body: JSON.stringify({{ ...JSON.parse(options.body), ...{fields} }}) }};
             return own(path, options);
         }}; 0 }}"
    ));
}

/// Replaces the page's `fetch` function, so that its next requests get these deltas as the answer.
fn answered_by(browser: &mut Browser, deltas: &[Value]) {
    let events: String = deltas
        .iter()
        .map(|delta| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]})))
        .chain(["data: [DONE]\n\n".to_owned()])
        .collect();
    // The stream is divided at arbitrary bytes, even in the middle of a character.
    browser.evaluate(&format!(
        "{{ const own = window.fetch; window.fetch = (path, options) => {{
             if (!path.includes('chat/completions')) return own(path, options);
             const bytes = new TextEncoder().encode({});
             return Promise.resolve(new Response(new ReadableStream({{ start(c) {{
               for (let i = 0; i < bytes.length; i += 7) c.enqueue(bytes.slice(i, i + 7));
               c.close();
             }} }})));
         }}; 0 }}",
        json!(events)
    ));
}

fn say(browser: &mut Browser, text: &str) {
    browser.evaluate(&format!(
        "document.getElementById('question').value = {}; document.getElementById('ask').requestSubmit(); 0",
        json!(text)
    ));
}

const IDLE: &str = "document.getElementById('stop').hidden && !document.getElementById('send').hidden";
const ANSWERS: &str = "Array.from(document.querySelectorAll('article.assistant .body'), node => node.innerText)";

/// Checks that the page shows the same answers as the HTTP interface. Conversations persist, and
/// can be edited, repeated and deleted.
#[test]
fn page_shows_answers_and_edits_conversations() {
    let Some(mut browser) = browser("it_talks") else { return };
    let server = Server::start(&["--chat-template", "chatml", "--parallel", "2", "-c", "1024"]);
    let ask = |messages: Value| {
        let request = json!({"messages": messages, "temperature": 0, "max_tokens": 12});
        let (_, answer) = server.post("/v1/chat/completions", &request);
        answer["choices"][0]["message"]["content"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let words = |text: &Value| text.as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    browser.evaluate(
        "{ for (const [name, value] of [['temperature', '0'], ['max_tokens', '12']]) {
             const input = document.querySelector(`#sampling input[name=${name}]`);
             input.value = value; input.dispatchEvent(new Event('change'));
           } 0 }",
    );
    say(&mut browser, "What is a trait?");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
    let first = ask(json!([{"role": "user", "content": "What is a trait?"}]));
    let said = browser.evaluate(ANSWERS);
    // Only letters and digits are compared, since rendering Markdown may remove other characters.
    let plain = |text: String| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    assert_eq!(plain(words(&said[0])), plain(first.clone()));
    assert!(browser.evaluate("document.querySelector('.note').innerText").as_str().unwrap().contains("12 tokens"));
    browser.until("document.querySelectorAll('#slots .slot').length === 2");
    browser.picture(&picture("light"));

    // After a reload, the conversation and its settings are restored, and it can continue.
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    assert_eq!(browser.evaluate(ANSWERS), said);
    assert_eq!(browser.evaluate("document.querySelector('#sampling input[name=max_tokens]').value"), "12");
    let sent = "JSON.parse(localStorage.getItem('ixc.conversations'))[0].messages";
    say(&mut browser, "And then?");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 2"));
    let raw = browser.evaluate(sent);
    assert_eq!(raw.as_array().unwrap().len(), 4);
    let before = [&raw[0], &raw[1], &raw[2]].map(|m| json!({"role": m["role"], "content": m["content"]}));
    let second = ask(json!(before));
    assert_eq!(plain(words(&raw[3]["content"])), plain(second));

    // The test repeats the last answer, and then changes the first question.
    let press = |name: &str, at: usize| {
        format!(
            "Array.from(document.querySelectorAll('article')[{at}].querySelectorAll('button'), b => b)
               .find(b => b.innerText === '{name}').click(); 0"
        )
    };
    browser.evaluate(&press("Regenerate", 3));
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 2"));
    assert_eq!(browser.evaluate(&format!("{sent}[3].content")), raw[3]["content"]);
    browser.evaluate(&press("Edit", 0));
    browser.evaluate("document.querySelector('article textarea').value = 'Hi'; document.querySelector('article form').requestSubmit(); 0");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
    assert_eq!(browser.evaluate(&format!("{sent}.map(m => m.content)[0]")), "Hi");

    // Starts a second conversation; then deletes it.
    browser.evaluate("document.getElementById('new').click(); 0");
    assert_eq!(browser.evaluate(ANSWERS), json!([]));
    say(&mut browser, "A second one");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
    assert_eq!(browser.evaluate("document.querySelectorAll('#conversations li').length"), 2);
    browser
        .evaluate("window.confirm = () => true; document.querySelectorAll('#conversations li button')[1].click(); 0");
    assert_eq!(browser.evaluate(&format!("{sent}[0].content")), "Hi");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks a conversation that is too long for the context: it continues without its oldest turns. A
/// note reports this, even after the page is opened again.
#[test]
fn page_drops_old_turns_with_a_note() {
    let Some(mut browser) = browser("page_drops_old_turns_with_a_note") else { return };
    let server = Server::start(&["--chat-template", "chatml", "--parallel", "1", "-c", "96"]);
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    with_fields(&mut browser, &json!({"temperature": 0, "max_tokens": 24, "ignore_eos": true}));
    let note = "Array.from(document.querySelectorAll('.dropped'), node => node.innerText)";
    for turn in 1..=6 {
        say(&mut browser, &format!("Question {turn}: what is a trait, and who implements it?"));
        browser.until(&format!("{IDLE} && {ANSWERS}.length === {turn}"));
        assert_eq!(browser.evaluate("document.querySelectorAll('.failure:not([hidden])').length"), 0, "{turn}");
    }
    let notes = browser.evaluate(note);
    assert_eq!(notes.as_array().unwrap().len(), 1);
    assert!(notes[0].as_str().unwrap().contains("room for 96 tokens"), "{notes}");
    browser.picture(&picture("dropped"));
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    assert_eq!(browser.evaluate(note), notes);
    // A single message that does not fit in the context gives an error that names the remedy.
    browser.evaluate("document.getElementById('new').click(); 0");
    say(&mut browser, &"word ".repeat(200));
    browser.until(&format!("{IDLE} && document.querySelector('article .failure') !== null"));
    let error = browser.evaluate("document.querySelector('article .failure').innerText");
    assert!(error.as_str().unwrap().contains("--ctx"), "{error}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks that the stop button stops the engine, not only the page.
#[test]
fn page_stop_button_stops_the_engine() {
    let Some(mut browser) = browser("it_stops") else { return };
    let server = Server::start(&["--chat-template", "chatml", "--parallel", "1"]);
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    with_fields(&mut browser, &json!({"ignore_eos": true, "max_tokens": 4000}));
    say(&mut browser, "Go on for ever");
    browser.until("document.querySelector('article.assistant .body')?.innerText.length > 20");
    browser.evaluate("document.getElementById('stop').click(); 0");
    browser.until(IDLE);
    server.until("the end of the request", |server| server.metric("requests_cancelled_total") == 1.0);
    assert_eq!(browser.evaluate("document.querySelector('article.assistant .note').innerText"), "stopped");
    // The text that was generated before the stop stays.
    assert!(
        browser
            .evaluate("JSON.parse(localStorage.getItem('ixc.conversations'))[0].messages[1].content.length")
            .as_u64()
            > Some(20)
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks that a model's text is shown as text, even if it looks like HTML, a script or a dangerous
/// URL. Reasoning is folded.
#[test]
fn page_shows_model_text_without_markup() {
    let Some(mut browser) = browser("page_shows_model_text_without_markup") else { return };
    let server = Server::start(&["--chat-template", "chatml"]);
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('model').value === 'demo'");
    let hostile = "<img src=x onerror=\"window.hit = 1\"><script>window.hit = 2</script>\n\n\
        [one](javascript:window.hit=3) [two](data:text/html,x) [three](https://example.org/?a=1\"onclick=\"x) <b>bold</b>\n\n\
        | a | b |\n| - | - |\n| <i>x</i> | `<u>` |";
    let markdown = "# Title\n\nSome **bold**, *slanted*, `code` and ~~old~~ text, https://example.org/x.\nNext line\n\n\
        - one\n- two\n  - inner\n\n1. first\n2. second\n\n> quoted\n\n```rust\nfn main() { let x = 1 * 2 * 3; }\n```\n\n---\n\n\
        | left | right |\n| --- | --- |\n| 1 | 2 |\n\nUmlaute: \u{e4}\u{f6}\u{fc} \u{1f980}";
    answered_by(
        &mut browser,
        &[
            json!({"role": "assistant", "content": null}),
            json!({"reasoning_content": "I *think* <b>so</b>"}),
            json!({"content": hostile}),
            json!({"content": format!("\n\n{markdown}")}),
        ],
    );
    say(&mut browser, "<b>my own</b> *words*");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
    let count = |browser: &mut Browser, what: &str| {
        browser.evaluate(&format!("document.querySelectorAll('#log {what}').length")).as_u64().unwrap()
    };
    for (what, expected) in [
        ("img", 0),
        ("script", 0),
        ("b", 0),
        ("i", 0),
        ("u", 0),
        ("article.user em", 0),
        ("table", 2),
        ("h3", 1),
        ("strong", 1),
        ("del", 1),
        ("ul", 2),
        ("ol", 1),
        ("blockquote", 1),
        ("pre", 1),
        ("hr", 1),
        ("details.reasoning", 1),
        ("details[open]", 0),
        ("a", 2),
        ("a:not([rel~=noopener])", 0),
        ("*[onclick]", 0),
    ] {
        assert_eq!(count(&mut browser, what), expected, "{what}");
    }
    let links = browser.evaluate("Array.from(document.querySelectorAll('#log a'), a => a.protocol)");
    assert_eq!(links, json!(["https:", "https:"]));
    assert_eq!(browser.evaluate("window.hit === undefined"), true);
    let text = browser.evaluate("document.querySelector('article.assistant .body').innerText");
    let text = text.as_str().unwrap();
    for shown in [
        "<img src=x",
        "<script>",
        "<b>bold</b>",
        "(javascript:window.hit=3)",
        "let x = 1 * 2 * 3;",
        "\u{e4}\u{f6}\u{fc} \u{1f980}",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert_eq!(browser.evaluate("document.querySelector('article.user .body').innerText"), "<b>my own</b> *words*");
    // Long texts that are designed to be slow to format are formatted in a short time.
    for long in [
        "**a ".repeat(20_000),
        "`".repeat(50_000),
        "[".repeat(50_000),
        "> ".repeat(2_000),
        "- ".repeat(5_000),
        "|".repeat(50_000),
    ] {
        answered_by(&mut browser, &[json!({"content": long})]);
        let begin = std::time::Instant::now();
        browser.evaluate("document.getElementById('new').click(); 0");
        say(&mut browser, "Long");
        browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
        assert!(begin.elapsed().as_secs() < 30, "{}", &long[..4]);
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks the page on a phone's screen, with dark colours and with an API key. The page also shows
/// the engine's activity.
#[test]
fn page_supports_phones_dark_mode_and_keys() {
    let Some(mut browser) = browser("page_supports_phones_dark_mode_and_keys") else { return };
    let server = Server::start(&["--chat-template", "chatml", "--api-key", "one"]);
    browser.resize(360, 740, "dark");
    browser.open(&format!("http://{}/", server.address()));
    browser.until("document.getElementById('engine-failure').textContent.includes('API key')");
    browser.evaluate("document.querySelector('[data-panel=side]').click(); 0");
    assert_eq!(browser.evaluate("getComputedStyle(document.getElementById('side')).visibility"), "visible");
    browser.evaluate(
        "{ const key = document.getElementById('key'); key.value = 'one'; key.dispatchEvent(new Event('change')); 0 }",
    );
    browser.until("document.getElementById('model').value === 'demo'");
    browser.until(
        "document.querySelectorAll('#slots .slot').length === 4 && document.getElementById('engine-failure').hidden",
    );
    // The use of experts is drawn: first from the server's counts, then from counts that the test
    // sets.
    browser.until("!document.getElementById('experts').hidden");
    browser.evaluate(
        "{ const own = window.fetch; window.fetch = (path, options) => path.startsWith('experts')
             ? Promise.resolve(Response.json({chosen: [[0, 1, 4], [9, 0, 2]]})) : own(path, options);
           document.getElementById('model').dispatchEvent(new Event('change')); 0 }",
    );
    browser.until("document.getElementById('heat').width === 3");
    let drawn = "(() => { const heat = document.getElementById('heat');
        const alpha = (x, y) => heat.getContext('2d').getImageData(x, y, 1, 1).data[3];
        return [heat.width, heat.height, alpha(0, 0), alpha(1, 0), alpha(2, 0), alpha(0, 1)]; })()";
    // The opacity of a cell is the square root of its share of the largest count.
    assert_eq!(browser.evaluate(drawn), json!([3, 2, 0, 85, 170, 255]));
    let said = browser.evaluate("document.getElementById('heat').getAttribute('aria-label')");
    assert!(said.as_str().unwrap().starts_with("4 of 6 experts were chosen"), "{said}");
    browser.picture(&picture("narrow-settings"));
    browser.evaluate("document.querySelector('[data-close=side]').click(); 0");
    answered_by(
        &mut browser,
        &[
            json!({"reasoning_content": "Let me see."}),
            json!({"content": "A *long* answer with `code`:\n\n```\nlet a_line_that_is_much_wider_than_a_phone = \"is scrolled by itself\"; // and nothing else is\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"}),
        ],
    );
    say(&mut browser, "A-word-that-is-longer-than-the-window-of-a-phone-is-wide-and-has-no-space-to-break-it-at");
    browser.until(&format!("{IDLE} && {ANSWERS}.length === 1"));
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
    assert_eq!(
        browser.evaluate("document.getElementById('log').scrollWidth <= document.getElementById('log').clientWidth"),
        true
    );
    browser.picture(&picture("narrow-dark"));
    let lightness = "(() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return r + g + b; })()";
    assert!(browser.evaluate(lightness).as_u64() < Some(150));
    browser.evaluate("document.getElementById('theme').click(); 0");
    assert!(browser.evaluate(lightness).as_u64() > Some(600));
    // Every control has a name, and screen readers announce answers.
    let nameless = "Array.from(document.querySelectorAll('button, input, select, textarea, canvas')).filter(node =>
        !(node.getAttribute('aria-label') || node.labels?.[0]?.textContent.trim() || node.textContent.trim() || node.closest('[hidden]')))
        .map(node => node.outerHTML)";
    assert_eq!(browser.evaluate(nameless), json!([]));
    browser.resize(1280, 900, "dark");
    browser.evaluate("document.getElementById('theme').click(); 0");
    browser.picture(&picture("dark"));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Checks the page's text without a browser: it is complete, needs no key, and has a content
/// security policy.
#[test]
fn page_is_served_with_a_security_policy() {
    let server = Server::start(&["--api-key", "one"]);
    let text = server.raw("GET", "/");
    let (head, page) = text.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/html; charset=utf-8"), "{head}");
    for part in [
        "default-src 'none'",
        "script-src 'nonce-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "nosniff",
        "no-store",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }
    let nonce = head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
}
