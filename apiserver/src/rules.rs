//! `x-kubernetes-validations`: the CEL rules of a CRD, and how they are tried on an object.
//!
//! ```yaml
//! x-kubernetes-validations: [{rule: "self.min <= self.max", message: "min is more than max"}, {rule: "self.name == oldSelf.name"}]
//! ```
//!
//! The crate `cel` runs them; what they may cost is in `cost.rs`.

use std::{
    fmt::{self, Write as _},
    ops::ControlFlow,
};

use serde_json::Value;

use super::{
    cost::{Budget, Counted},
    refusal::Cause,
    schema::Wrong,
    told::{Path, Told, json_type},
};

/// The `x-kubernetes-validations` of one place in the schema.
#[derive(Debug)]
pub(super) struct Rules {
    /// Property names; `[]` goes into each item, `{}` into each value of a map.
    path: Vec<String>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    program: Counted,
    /// A transition rule: it holds between an object and what was there before.
    needs_old: bool,
    rule: String,
    message: Option<String>,
    message_expression: Option<Counted>,
    reason: Option<String>,
}

/// All rules of a schema, in the order in which it has them.
pub(super) fn compile(schema: &Value) -> Result<Vec<Rules>, Wrong> {
    let mut rules = Vec::new();
    on_large_stack(|| collect_rules(schema, "", &mut Vec::new(), &mut rules))?;
    Ok(rules)
}

/// Tells which of them do not hold.
pub(super) fn check(
    all: &[Rules],
    object: &Value,
    before: Option<&Value>,
    told: &mut Told<'_>,
) -> ControlFlow<()> {
    let mut check = || {
        let budget = Budget::new();
        all.iter().try_for_each(|rules| rules.check(object, before, &rules.path, &Path::Root, &budget, told))
    };
    match all.iter().flat_map(|rules| &rules.rules).map(Rule::depth).max() {
        Some(..=DEPTH_MAX) | None => check(),
        Some(_) => on_large_stack(check),
    }
}

/// Most tokens in a rule: the library goes one level deeper for each bracket and each operator, when it parses and when
/// it evaluates. The longest rules of well-known CRDs have some hundred.
const RULE_TOKENS_MAX: usize = 1000;

/// For [`RULE_TOKENS_MAX`] levels, of up to 40 KB each without optimization. What is not used is never allocated.
const RULE_STACK_BYTES: usize = 64 * 1024 * 1024;

/// Levels of a rule that are evaluated where we are. Each takes up to 36 KB without optimization, and the threads of tests
/// have 2 MiB.
const DEPTH_MAX: usize = 24;

/// The stack of a tokio thread would overflow, and with it the process would go.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(RULE_STACK_BYTES).spawn_scoped(scope, work);
        thread.expect("a thread, as the process has others").join().expect("the library returns its errors")
    })
}

/// The program of a rule. Text is counted as if it were code, which no bracket in a string can then get around.
fn program(rule: &str) -> Result<Counted, String> {
    let mut tokens = 0;
    let mut in_word = false;
    for c in rule.chars() {
        let is_word = c.is_alphanumeric() || c == '_';
        tokens += usize::from(!(c.is_whitespace() || is_word && in_word));
        in_word = is_word;
    }
    if tokens > RULE_TOKENS_MAX {
        return Err(format!("the rule has {tokens} tokens, at most {RULE_TOKENS_MAX} are evaluated here"));
    }
    Counted::compile(rule)
}

fn collect_rules(
    schema: &Value,
    at: &str,
    path: &mut Vec<String>,
    rules: &mut Vec<Rules>,
) -> Result<(), Wrong> {
    let mut here = Vec::new();
    for (index, source) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let text = |field: &str| source[field].as_str().map(str::to_owned);
        let rule = text("rule").unwrap_or_default();
        let compile = |field: &str, expression: &str| {
            program(expression).map_err(|why| Wrong {
                at: format!("{at}.x-kubernetes-validations[{index}].{field}"),
                value: source.clone(),
                why: format!("compilation failed: {why}"),
            })
        };
        here.push(Rule {
            program: compile("rule", &rule)?,
            needs_old: rule.contains("oldSelf"),
            message: text("message"),
            message_expression: text("messageExpression")
                .map(|source| compile("messageExpression", &source))
                .transpose()?,
            reason: text("reason"),
            rule,
        });
    }
    if !here.is_empty() {
        rules.push(Rules { path: path.clone(), rules: here });
    }
    let mut inside = |name: &str, at: String, schema: &Value| {
        path.push(name.to_owned());
        let result = collect_rules(schema, &at, path, rules);
        path.pop();
        result
    };
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        inside(name, format!("{at}.properties[{name}]"), schema)?;
    }
    if schema["items"].is_object() {
        inside("[]", format!("{at}.items"), &schema["items"])?;
    }
    if schema["additionalProperties"].is_object() {
        inside("{}", format!("{at}.additionalProperties"), &schema["additionalProperties"])?;
    }
    Ok(())
}

impl Rules {
    /// Walk down to where the rules stand, then try them there. What costs too much ends it.
    fn check(
        &self,
        value: &Value,
        old: Option<&Value>,
        below: &[String],
        path: &Path<'_>,
        budget: &Budget,
        told: &mut Told<'_>,
    ) -> ControlFlow<()> {
        let Some((step, below)) = below.split_first() else {
            return self.check_here(value, old, path, budget, told);
        };
        match step.as_str() {
            // Nothing in it has changed.
            "[]" if old == Some(value) => {}
            "[]" => {
                // Items of a list have no identity across versions here, so transition rules see no old item.
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(item, None, below, &Path::Index(path, index), budget, told)?;
                }
            }
            "{}" => {
                for (name, item) in value.as_object().into_iter().flatten() {
                    let old = old.and_then(|old| old.get(name));
                    self.check(item, old, below, &Path::Key(path, name), budget, told)?;
                }
            }
            name => {
                let Some(inner) = value.get(name) else { return ControlFlow::Continue(()) };
                let old = old.and_then(|old| old.get(name));
                self.check(inner, old, below, &Path::Field(path, name), budget, told)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn check_here(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        budget: &Budget,
        told: &mut Told<'_>,
    ) -> ControlFlow<()> {
        if value.is_null() {
            return ControlFlow::Continue(());
        }
        let mut context = budget.context();
        for (name, value) in [("self", Some(value)), ("oldSelf", old)] {
            // What is too large is told with the first rule.
            if let Some(Ok(value)) = value.map(|value| budget.value(value)) {
                context.add_variable_as_val(name, value);
            }
        }
        // What was wrong before may stay so: a rule that does not look at it is for changes.
        let is_due = |rule: &&Rule| if rule.needs_old { old.is_some() } else { old != Some(value) };
        for rule in self.rules.iter().filter(is_due) {
            if let Some(cause) = rule.check(&context, value, path, budget) {
                told.tell(cause)?;
            }
            if budget.is_spent() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Rule {
    fn depth(&self) -> usize {
        self.program.depth().max(self.message_expression.as_ref().map_or(0, Counted::depth))
    }

    /// What is wrong with a value, or that it costs too much to find out.
    fn check(
        &self,
        context: &cel::Context<'_, '_>,
        value: &Value,
        path: &Path<'_>,
        budget: &Budget,
    ) -> Option<Cause> {
        let result = self.program.run(context);
        let fails = |text: String| Cause::invalid(path.to_string(), &json_type(value).into(), &text);
        if budget.is_spent() {
            return Some(fails(format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                call cost exceeds limit for rule: {}",
                self.rule
            )));
        }
        match result {
            Ok(cel::Value::Bool(true)) => return None,
            Ok(_) => {}
            // A rule that uses a function that the library lacks is refused, not passed over.
            Err(error) => {
                return Some(fails(format!("{} evaluating rule: {}", Short::of(&error), self.rule)));
            }
        }
        let computed = self.message_expression.as_ref().and_then(|program| match program.run(context) {
            Ok(cel::Value::String(text)) => Some(text.to_string()),
            Ok(_) | Err(_) => None,
        });
        let message = computed.or_else(|| self.message.clone());
        let message = message.unwrap_or_else(|| format!("failed rule: {}", self.rule));
        let field = path.to_string();
        Some(match self.reason.as_deref() {
            Some("FieldValueForbidden") => Cause::forbidden(field, &message),
            Some("FieldValueRequired") => Cause::required(field, &message),
            Some("FieldValueDuplicate") => Cause::duplicate(field, value),
            // FieldValueInvalid, the default.
            Some(_) | None => Cause::rule_failed(field, value, &message),
        })
    }
}

/// The beginning of what the library says, which can be all of the object.
struct Short(String);

/// Enough for names and numbers.
const SHORT_BYTES_MAX: usize = 500;

impl Short {
    fn of(error: &cel::ExecutionError) -> String {
        let mut short = Short(String::new());
        match write!(short, "{error}") {
            Ok(()) => short.0,
            Err(_) => short.0 + "…",
        }
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > SHORT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Schema;

    fn said(rules: Value, object: &Value) -> Vec<String> {
        let source = json!({"type": "object", "x-kubernetes-validations": rules});
        let mut causes = Vec::new();
        Schema::compile(&source).expect("a good schema").validate(object, None, &mut causes);
        causes.iter().map(|cause| cause.to_string()).collect()
    }

    /// Nobody else was served for as long as that took.
    #[test]
    fn a_rule_that_costs_too_much_is_the_last_one() {
        let much = "self.items.all(a, self.items.all(b, self.items.all(c, a + b + c >= 0)))";
        let rules = json!([{"rule": "self.min > 1"}, {"rule": much}, {"rule": "false"}]);
        let object = json!({"min": 1, "items": (0..120).collect::<Vec<_>>()});
        let cut = format!(
            ": Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules will \
            be run due to call cost exceeds limit for rule: {much}"
        );
        assert_eq!(said(rules, &object), [": Invalid value: failed rule: self.min > 1", &cut]);
    }

    /// Whole numbers were unsigned, which can be added to no other; and an error showed all that there was, with each rule.
    #[test]
    fn rules_count_and_their_errors_are_short() {
        let object = json!({"min": 1, "max": 2, "text": "x".repeat(100_000)});
        assert_eq!(
            said(json!([{"rule": "self.min + 1 == self.max && self.?nope.orValue(-1) == -1"}]), &object),
            [""; 0]
        );
        let said = said(json!([{"rule": "self.text + 1 == ''"}]), &object);
        assert!(said[0].ends_with("… evaluating rule: self.text + 1 == ''"), "{said:?}");
    }

    /// Sixty brackets overflowed the stack, with which the whole process went.
    #[test]
    fn a_rule_is_as_long_as_the_stack_can_bear() {
        let rules = |times: usize| {
            let around = |open: &str, core: &str, close: &str| {
                format!("{}{core}{}", open.repeat(times), close.repeat(times))
            };
            [
                around("(", "true", ")"),
                around("(", "true", ""),
                around("[", "true", "]") + " == self",
                around("!", "true", ""),
                around("-", "1", "") + " == 1",
                around("1+", "1", "") + " > 0",
                around("1 in ", "[1]", ""),
                around("", "self", ".a") + " == 1",
                around("true ? true : ", "true", ""),
                around("size(", "self", ")") + " == 1",
            ]
        };
        let compile = |rule: &str| {
            Schema::compile(&json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]}))
        };
        for rule in rules(10_000) {
            let why = compile(&rule).map(drop).expect_err("too long").why;
            assert!(why.contains("at most 1000"), "{why}");
        }
        // Where we are, which is small, or on a stack of their own.
        let check = move || {
            for rule in (1..12)
                .flat_map(rules)
                .chain((1..12).map(|times| "self.?a[?".repeat(times) + "1" + &"]".repeat(times)))
            {
                let _ = compile(&rule).map(|schema| schema.validate(&json!({}), None, &mut Vec::new()));
            }
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(check).expect("a thread");
        thread.join().expect("a stack that is large enough");
        // Nobody says that they hold.
        for times in [60, 190, 480] {
            for rule in rules(times) {
                let _ = compile(&rule).map(|schema| schema.validate(&json!({}), None, &mut Vec::new()));
            }
        }
    }
}
