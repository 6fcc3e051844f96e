//! What CEL rules may cost: their steps, and the values that they copy and compare, are counted while they run.
//!
//! The library has no limit: `self.all(a, self.all(b, self.all(c, …)))` over a hundred items takes seconds, and
//! `[self].map(a, a + a)` forty times over needs terabytes. But it runs the syntax tree that it is given, so a call of a
//! function of ours is put around each part whose size matters:
//!
//! ```text
//! self.all(a, a + a in self)     becomes     @whole(self).all(a, @whole(@whole(a) + @whole(a)) in @whole(self))
//! ```
//!
//! It answers what it is given, counts it, and fails when nothing is left; no rule can spell its name. What a step makes
//! is never larger than what went in, so memory is limited too. The real server counts likewise, in units of its own.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use cel::{
    Context, Env, ExecutionError, FunctionContext, IdedExpr,
    common::{
        ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators},
        types::{
            CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional,
            CelString, CelUInt,
        },
        value::{CowVal, Val},
    },
};
use jsonschema::{PatternOptions, Validator};
use serde_json::{Value, json};

/// What all rules may cost for one write of an object: about half a second without optimization. The real server has ten
/// million of its own units, of which a round of a loop takes about ten; it takes up to thirty of ours.
const COST_MAX: usize = 400_000;

/// Bytes of a text that cost as much as one value.
const UNIT_BYTES: usize = 100;

/// How much slower than another look at a text it is to search in it.
const PATTERN_UNIT_BYTES: usize = 10;

/// Of a pattern's first use, as large as it may be: some milliseconds without optimization.
const PATTERN_COST: usize = 2_000;

/// A compiled pattern. Those of names are far smaller, with all their lengths; the library's own limit takes ten times as
/// long to reach.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// Items of lists that are shown to a rule for the price of one that it looks at: each takes about 0.1 µs without
/// optimization, a field of an object ten times that.
const ITEMS_FOR_ONE: usize = 10;

/// Of getting ready where there are rules, each item of a list for example.
const CONTEXT_COST: usize = 20;

/// Counts a value with all that is in it.
const WHOLE: &str = "@whole";
/// Counts a value alone.
const TOP: &str = "@top";
/// Refuses what the library would copy a list for, only to say that it is no index.
const INDEX: &str = "@index";
const MATCHES: &str = "@matches";

/// All that the rules of the real server may call, as far as the library has it. It takes a while to make.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// What rules may still cost.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
    /// Those that were compiled, or why not.
    patterns: Arc<Mutex<HashMap<String, Result<Validator, String>>>>,
}

/// An expression that counts.
#[derive(Debug)]
pub(super) struct Counted {
    expression: IdedExpr,
    /// Levels of the tree.
    depth: usize,
}

type Function = Box<
    dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError> + Send + Sync,
>;

/// A part of an expression, and what counts it.
type Part<'a> = (&'a mut IdedExpr, Option<&'static str>);

type Count = fn(&Budget, &CowVal<'_, '_>) -> Result<(), ExecutionError>;

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { left: Arc::new(AtomicUsize::new(COST_MAX)), patterns: Arc::default() }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn spend(&self, cost: usize) -> Result<(), ExecutionError> {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(cost);
        self.left.store(left, Ordering::Relaxed);
        match left {
            0 => Err(ExecutionError::function_error(WHOLE, "actual cost limit exceeded")),
            _ => Ok(()),
        }
    }

    fn spend_on(&self, value: &dyn Val) -> Result<(), ExecutionError> {
        self.spend(1 + text_bytes(value) / UNIT_BYTES)?;
        if let Some(list) = value.downcast_ref::<CelList>() {
            return list.inner().iter().try_for_each(|item| self.spend_on_part(&**item));
        }
        let map = value.downcast_ref::<CelMap>().into_iter().flat_map(|map| map.inner());
        for (key, value) in map {
            self.spend_on(key.inner())?;
            self.spend_on_part(&**value)?;
        }
        match value.downcast_ref::<CelOptional>().and_then(CelOptional::inner) {
            Some(value) => self.spend_on(value),
            None => Ok(()),
        }
    }

    /// The library copies what is in an optional with each look at it, if that is in a list.
    fn spend_on_part(&self, value: &dyn Val) -> Result<(), ExecutionError> {
        match value.downcast_ref::<CelOptional>() {
            Some(_) => self.spend(usize::MAX),
            None => self.spend_on(value),
        }
    }

    /// What a rule sees of an object, which costs something too.
    pub(super) fn value<'v>(&self, value: &'v Value) -> Result<Box<dyn Val + 'v>, ExecutionError> {
        self.spend(1 + items_of(value) / ITEMS_FOR_ONE)?;
        Ok(in_cel(value))
    }

    /// The library would compile a pattern with each use of it.
    fn matches(&self, text: String, pattern: &str) -> Result<bool, ExecutionError> {
        self.spend(1 + text.len() / PATTERN_UNIT_BYTES)?;
        let mut patterns = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        if !patterns.contains_key(pattern) {
            self.spend(PATTERN_COST + pattern.len() / UNIT_BYTES)?;
            let schema = json!({"pattern": pattern});
            let options = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX);
            let compiled = jsonschema::options().with_pattern_options(options).build(&schema);
            patterns.insert(pattern.to_owned(), compiled.map_err(|error| error.to_string()));
        }
        match &patterns[pattern] {
            Ok(compiled) => Ok(compiled.is_valid(&text.into())),
            Err(why) => Err(ExecutionError::function_error("matches", why)),
        }
    }

    /// Where rules are run.
    pub(super) fn context<'v>(&self) -> Context<'static, 'v> {
        let mut context = Context::with_env(ENV.clone());
        // What is then too much is found out by the first rule.
        let _ = self.spend(CONTEXT_COST);
        let functions: [(&str, Count); 3] = [
            (WHOLE, |budget, value| budget.spend_on(&**value)),
            (TOP, |budget, value| budget.spend(1 + text_bytes(&**value) / UNIT_BYTES)),
            (INDEX, |budget, value| match value.downcast_ref::<CelDouble>() {
                Some(_) => Err(ExecutionError::function_error("_[_]", "a double is no index")),
                None => budget.spend_on(&**value),
            }),
        ];
        for (name, count) in functions {
            let budget = self.clone();
            let function: Function = Box::new(move |call| {
                let (Some(steps), Some(value)) = (call.args.pop(), call.args.pop()) else {
                    return Err(ExecutionError::missing_argument_or_target());
                };
                let steps = steps.downcast_ref::<CelInt>().map_or(0, |steps| *steps.inner());
                budget.spend(usize::try_from(steps).unwrap_or(usize::MAX))?;
                count(&budget, &value)?;
                Ok(value)
            });
            context.add_function(name, function).expect("a name of ours");
        }
        let budget = self.clone();
        let matches: Function = Box::new(move |call| {
            let text =
                |arg: &CowVal<'_, '_>| arg.downcast_ref::<CelString>().map(|text| text.inner().to_owned());
            let [Some(text), Some(pattern)] = [0, 1].map(|at| call.args.get(at).and_then(text)) else {
                return Err(ExecutionError::no_such_overload("matches", Vec::new()));
            };
            budget.matches(text, &pattern).map(|matches| CowVal::owned(CelBool::from(matches)))
        });
        context.add_function(MATCHES, matches).expect("a name of ours");
        context
    }
}

/// Items that it takes as long to show as a value. A field is several.
fn items_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len() + items.iter().map(items_of).sum::<usize>(),
        Value::Object(map) => map.len() * ITEMS_FOR_ONE + map.values().map(items_of).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whole numbers are `int`s: `self.size + 1`.
fn in_cel(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(one) => Box::new(CelBool::from(*one)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Box::new(CelInt::from(int)),
            (None, Some(uint)) => Box::new(CelUInt::from(uint)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or_default())),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => Box::new(CelList::from(items.iter().map(in_cel).collect::<Vec<_>>())),
        Value::Object(map) => {
            let entries = map.iter().map(|(name, value)| (CelMapKey::from(name.as_str()), in_cel(value)));
            Box::new(CelMap::from(entries.collect::<HashMap<_, _>>()))
        }
    }
}

fn text_bytes(value: &dyn Val) -> usize {
    let text = value.downcast_ref::<CelString>().map_or(0, |text| text.inner().len());
    text + value.downcast_ref::<CelBytes>().map_or(0, |bytes| bytes.inner().len())
}

impl Counted {
    pub(super) fn compile(rule: &str) -> Result<Counted, String> {
        let program = ENV.compile(rule).map_err(|error| error.to_string())?;
        let mut expression = program.expression().clone();
        let Size { depth, steps } = count_in(&mut expression, 0);
        count(&mut expression, WHOLE, steps);
        Ok(Counted { expression, depth })
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn run(&self, context: &Context<'_, '_>) -> Result<cel::Value, ExecutionError> {
        cel::Value::resolve(&self.expression, context)
    }
}

/// Of an expression.
#[derive(Default)]
struct Size {
    depth: usize,
    /// Those that nothing in it counts.
    steps: usize,
}

/// Makes an expression count itself, inside of some comprehensions.
fn count_in(expression: &mut IdedExpr, scopes: usize) -> Size {
    // A name is looked up in each scope.
    let mut size = Size { depth: 0, steps: 1 + scopes / 4 };
    for (part, function) in parts(&mut expression.expr) {
        let inner = count_in(part, scopes);
        size.depth = size.depth.max(inner.depth);
        match (function, &part.expr) {
            (None, _) => size.steps += inner.steps,
            // Not worth a call.
            (_, Expr::Literal(LiteralValue::Boolean(_) | LiteralValue::Int(_) | LiteralValue::Null)) => {
                size.steps += inner.steps;
            }
            (Some(function), _) => count(part, function, inner.steps),
        }
    }
    if let Expr::Comprehension(comprehension) = &mut expression.expr {
        let mut round = 0;
        for part in [&mut comprehension.loop_step, &mut comprehension.result, &mut comprehension.loop_cond] {
            let inner = count_in(part, scopes + 1);
            size.depth = size.depth.max(inner.depth);
            round += inner.steps;
        }
        // An item that fails does not end an `all`, its condition does. Where the condition is a literal, the library
        // wants it to be one, and the first item that fails ends it.
        if !matches!(comprehension.loop_cond.expr, Expr::Literal(_)) {
            count(&mut comprehension.loop_cond, WHOLE, round);
        }
    }
    if let Expr::Call(call) = &mut expression.expr {
        match &*call.func_name {
            "matches" => {
                call.func_name = MATCHES.to_owned();
                call.args.splice(0..0, call.target.take().map(|target| *target));
            }
            // What they find is copied.
            operators::OPT_INDEX | operators::OPT_SELECT => count(expression, WHOLE, 0),
            _ => {}
        }
    }
    // It, and what is put around it, twice if it is optional.
    size.depth += 3;
    size
}

/// Puts a call of a function of ours around an expression.
fn count(expression: &mut IdedExpr, function: &str, steps: usize) {
    let steps = LiteralValue::Int(i64::try_from(steps).unwrap_or(i64::MAX).into());
    let steps = IdedExpr { id: expression.id, expr: Expr::Literal(steps) };
    let args = vec![std::mem::take(expression), steps];
    expression.expr = Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args });
}

/// What an expression is made of, but for the rounds of a comprehension; and how each is counted, if it has a size that
/// matters.
fn parts(expression: &mut Expr) -> Vec<Part<'_>> {
    match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Select(select) => vec![(&mut select.operand, None)],
        Expr::List(list) => list.elements.iter_mut().map(|item| (item, Some(WHOLE))).collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(|entry| of_entry(&mut entry.expr)).collect(),
        Expr::Struct(strct) => strct.entries.iter_mut().flat_map(|entry| of_entry(&mut entry.expr)).collect(),
        Expr::Comprehension(one) => vec![(&mut one.iter_range, Some(WHOLE)), (&mut one.accu_init, None)],
        Expr::Call(call) => of_call(call),
    }
}

fn of_call(CallExpr { func_name, target, args }: &mut CallExpr) -> Vec<Part<'_>> {
    // The library knows `map` by its `@result + [item]`, and appends without a copy.
    let appends =
        matches!(&args[..], [first, ..] if matches!(&first.expr, Expr::Ident(name) if name.starts_with('@')));
    match (func_name.as_str(), &mut args[..]) {
        (operators::CONDITIONAL, [condition, then, otherwise]) => {
            vec![(condition, Some(WHOLE)), (then, None), (otherwise, None)]
        }
        (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, [value, index]) => {
            vec![(value, None), (index, Some(INDEX))]
        }
        // `optional` is no value.
        ("none" | "of" | "ofNonZeroValue", args) => with(args, target, Some(WHOLE), None),
        ("size", args) => with(args, target, Some(TOP), Some(TOP)),
        // They look at Booleans; it counts by itself.
        (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, args)
        | (operators::NOT_STRICTLY_FALSE | "matches", args) => with(args, target, None, None),
        (_, args) if appends => with(args, target, None, None),
        (_, args) => with(args, target, Some(WHOLE), Some(WHOLE)),
    }
}

fn with<'a>(
    args: &'a mut [IdedExpr],
    target: &'a mut Option<Box<IdedExpr>>,
    arg_by: Option<&'static str>,
    target_by: Option<&'static str>,
) -> Vec<Part<'a>> {
    let target = target.as_deref_mut().map(|target| (target, target_by));
    args.iter_mut().map(|arg| (arg, arg_by)).chain(target).collect()
}

fn of_entry(entry: &mut EntryExpr) -> Vec<Part<'_>> {
    match entry {
        EntryExpr::StructField(field) => vec![(&mut field.value, Some(WHOLE))],
        EntryExpr::MapEntry(entry) => vec![(&mut entry.key, Some(WHOLE)), (&mut entry.value, Some(WHOLE))],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether a rule holds, and what it costs.
    fn cost(rule: &str, object: &Value) -> (Result<cel::Value, String>, usize) {
        let rule = Counted::compile(rule).expect("a good rule");
        let budget = Budget::new();
        let mut context = budget.context();
        context.add_variable_as_val("self", budget.value(object).expect("small enough"));
        let before = budget.left.load(Ordering::Relaxed);
        let answer = rule.run(&context).map_err(|error| error.to_string());
        (answer, before - budget.left.load(Ordering::Relaxed))
    }

    fn object() -> Value {
        let listener =
            |n| json!({"name": format!("listener-{n}"), "port": n, "protocol": "HTTP", "hostname": "a.b.c"});
        let listeners: Vec<Value> = (0..64).map(listener).collect();
        json!({
            "items": (0..120).collect::<Vec<_>>(), "wide": vec![1; 50_000], "text": "x".repeat(1_000_000),
            "listeners": listeners, "labels": {"a": "b"}, "deep": {"a": {"b": {"c": 1}}}, "min": 1, "max": 2,
        })
    }

    /// Such rules held up everybody for minutes, or took all memory that there was.
    #[test]
    fn what_costs_too_much_is_cut_short() {
        let around = |before: &str, inner: &str, after: &str, times: usize| {
            format!("{}{inner}{}", before.repeat(times), after.repeat(times))
        };
        let chain = format!("has(self{})", ".b".repeat(200));
        let dns = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$";
        let rules = [
            "self.items.all(a, self.items.all(b, self.items.all(c, a + b + c >= 0)))".to_owned(),
            // An item that fails ends nothing.
            "self.items.all(a, self.items.all(b, self.items.all(c, a < 'x')))".to_owned(),
            around("[1, 2].all(a, ", "true", ")", 50),
            around("[1, 2].exists_one(a, ", "true", ")", 50),
            around("[1, 2].map(a, ", "1", ")", 50) + " == []",
            around("[1, 2].filter(a, ", "true", ") == []", 50),
            format!("[self.items]{} == []", ".map(a, a + a)".repeat(60)),
            format!("[self.text]{} == []", ".map(a, a + a)".repeat(60)),
            format!("[self.items]{} == []", ".map(a, [a, a])".repeat(60)),
            format!("[self.items]{} == []", ".map(a, {'a': a, 'b': a})".repeat(60)),
            // Each step looks at much.
            "self.wide.all(a, self.text.size() > 1)".to_owned(),
            "self.wide.all(a, !self.text.contains('abc'))".to_owned(),
            "self.wide.all(a, self.text + 'b' != 'a')".to_owned(),
            "self.wide.all(a, self.wide == self.wide)".to_owned(),
            "self.wide.all(a, !(2 in self.wide))".to_owned(),
            "self.wide.all(a, self.wide[1.5] == 'a')".to_owned(),
            "self.wide.all(a, self < 1)".to_owned(),
            "self.wide.all(a, self.?wide.hasValue())".to_owned(),
            "[optional.of(self)].all(o, self.wide.all(a, o.text.size().value() > 1))".to_owned(),
            // Each step is many.
            format!("self.wide.all(a, !(a in [{}]))", vec!["2"; 300].join(",")),
            format!("self.wide.all(a, {})", vec!["has(self.deep.a.b.c)"; 50].join(" && ")),
            format!("self.wide.all(a, !{chain})"),
            around("[1].all(a, ", &format!("self.wide.all(a, !{chain})"), ")", 50),
            // Patterns.
            "self.wide.all(a, 'abc'.matches('(a{1000}){' + string(size(self.wide)) + '}') || true)"
                .to_owned(),
            "self.items.all(a, !'abc'.matches(string(a + 1000)))".to_owned(),
            format!("self.items.all(a, !(self.text + '.').matches('{dns}'))"),
        ];
        let check = move || {
            let object = object();
            let mut cheap = Vec::new();
            for rule in rules {
                let (answer, cost) = cost(&rule, &object);
                if cost < COST_MAX / 2 {
                    cheap.push(format!("{cost}: {rule}: {answer:.100?}"));
                }
            }
            assert!(cheap.is_empty(), "{cheap:#?}");
        };
        // Some are deep.
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(check).expect("a thread");
        thread.join().expect("no rule that costs little");
    }

    /// Such an object was refused for its size, whatever the rule.
    #[test]
    fn a_large_object_costs_little_where_no_rule_looks_at_it_all() {
        let object = json!({"items": vec![1; 1_500_000]});
        let budget = Budget::new();
        let mut context = budget.context();
        context.add_variable_as_val("self", budget.value(&object).expect("small enough"));
        let rule = Counted::compile("!has(self.min) || self.min > 0").expect("a good rule");
        assert_eq!(rule.run(&context).map_err(|error| error.to_string()), Ok(cel::Value::Bool(true)));
        assert!(!budget.is_spent());
        // A field takes ten times as long as an item.
        let map: Value = (0..COST_MAX).map(|n| (format!("k{n}"), json!(n))).collect();
        assert!(Budget::new().value(&map).is_err());
    }

    #[test]
    fn rules_as_they_are_written_cost_little() {
        for rule in [
            // Of gateway-api, cert-manager, Karpenter and others.
            "self.listeners.all(l, !(l.protocol in ['TCP', 'UDP']) || !has(l.tls))",
            "self.listeners.all(l1, self.listeners.exists_one(l2, l1.name == l2.name))",
            "self.listeners.all(l1, self.listeners.exists_one(l2, l1.port == l2.port && l1.protocol == l2.protocol \
                && (has(l1.hostname) && has(l2.hostname) ? l1.hostname == l2.hostname : !has(l1.hostname) && !has(l2.hostname))))",
            "self.listeners.all(l, l.hostname.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$'))",
            "self.min + 1 <= self.max && self.?nope.orValue(3) == 3",
            "self.labels.all(k, k.startsWith('a') && self.labels[k].size() < 64)",
            "self.items.map(i, i * 2).filter(i, i > 10).size() == 114",
            "self.items.exists(i, i == 119) && self.items.all(i, i in self.items)",
            "type(self.min) == int && self.deep.a.b == {'c': 1} && [?self.?min] == [1] && duration('1h') > duration('1s')",
        ] {
            let (answer, cost) = cost(rule, &object());
            assert_eq!(answer, Ok(cel::Value::Bool(true)), "{rule}");
            assert!(cost < COST_MAX / 2, "{cost}: {rule}");
        }
    }
}
