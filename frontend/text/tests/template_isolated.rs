//! Tests of hostile templates in a helper process. This program is its own helper, so it has no
//! test harness.

use std::process::ExitCode;

use ixc_text::template::{
    ChatTemplate, Conversation, Limit, Message, RENDER_ARGUMENT, TemplateError, serve_render_request,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(argument) if argument == RENDER_ARGUMENT => return serve_render_request(),
        // `cargo test` passes `--list` and filters. This program has one test, which is fast, so it
        // ignores filters.
        Some(argument) if argument == "--list" => {
            println!("hostile_templates_end_in_errors: test");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    text_comes_back_as_it_was();
    hostile_templates_end_in_errors();
    a_broken_helper_is_an_error();
    println!("template_isolated: ok");
    ExitCode::SUCCESS
}

fn render(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    let this = std::env::current_exe().expect("a running program has a path");
    ChatTemplate::from_source(source).and_then(|template| template.render_isolated(&this, conversation))
}

fn conversation(content: &str) -> Conversation {
    Conversation {
        messages: vec![Message::new("user", content)],
        add_generation_prompt: true,
        ..Conversation::default()
    }
}

fn text_comes_back_as_it_was() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
    for content in ["hi", "\0\u{1b}\"\\ é 😀\u{2028}", &"long \u{1} ".repeat(1 << 18)] {
        assert_eq!(render(template, &conversation(content)), Ok(format!("user: {content}")));
    }
}

fn hostile_templates_end_in_errors() {
    let doubling = "{% set ns = namespace(s='0123456789abcdef') %}{% for i in range(40) %}\
                    {% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}";
    let join = "{% set s = 'x' * 10000 %}{{ range(100000) | join(s) | length }}";
    let list = "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s | list %}\
                {% set ns.s = ns.s | list %}{% endfor %}{{ ns.s | length }}";
    let format = "{{ '%1000000000d' | format(1) | length }}";
    let repeat = "{{ 'x' * 99999999 ~ 'y' * 99999999 }}";
    for source in [doubling, join, list, format, repeat] {
        let error = render(source, &conversation("hi")).expect_err(source);
        println!("{source:.60}: {error}");
        assert!(!matches!(error, TemplateError::Failed { .. }), "{source}: {error}");
    }
    let is_limit = |source: &str, wanted: Limit| {
        let error = render(source, &conversation("hi")).expect_err(source);
        assert!(matches!(error, TemplateError::Limit { limit, .. } if limit == wanted), "{source}: {error}");
    };
    is_limit(doubling, Limit::Memory);
    is_limit("{% for a in range(1000) %}{% for b in range(1000) %}{{ a }}{% endfor %}{% endfor %}", Limit::Steps);
    is_limit("{% for a in range(1000) %}{{ 'x' * 10000 }}{% endfor %}", Limit::Output);
    // Each step searches megabytes of text, so the limit on steps alone would allow minutes.
    let slow = "{% set s = 'a' * 8000000 %}{% for i in range(20000) %}{% if 'ab' in s %}{% endif %}{% endfor %}";
    is_limit(slow, Limit::Time);
    let error = render("{{ raise_exception('no') }}", &conversation("hi")).expect_err("raises");
    assert_eq!(error, TemplateError::Raised { message: "no".into() });
}

fn a_broken_helper_is_an_error() {
    let template = ChatTemplate::from_source("x").expect("short");
    let error = |helper: &str| template.render_isolated(helper.as_ref(), &conversation("hi")).expect_err(helper);
    assert!(matches!(error("/nonexistent/ixc"), TemplateError::Start { .. }));
    for helper in ["/bin/false", "/bin/true", "/bin/echo"] {
        let error = error(helper);
        assert!(matches!(error, TemplateError::Failed { .. }), "{helper}: {error}");
    }
}
