//! The functions that Kubernetes adds to CEL.
//!
//! ```text
//! isIP(self.address) && ip(self.address).family() == 4 && cidr('10.0.0.0/8').containsIP(self.address)
//! self.ports.isSorted() && self.text.find('[0-9]+') == '1' && sets.contains(self.modes, ['a'])
//! ```
//!
//! They follow k8s.io/apiserver/pkg/cel/library, also in their errors. See <https://kubernetes.io/docs/reference/using-api/cel/>.

use std::{any::Any, borrow::Cow, cmp::Ordering, collections::HashMap, fmt::Debug, net::IpAddr};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        functions::Function,
        types::{
            CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelOptional, CelString, DYN_TYPE,
            LIST_TYPE, Type,
        },
        value::{CowVal, StaticVal, Val},
    },
};
use listwatch_formats::quantity::Quantity;

use crate::{
    names::{dns_1035_errors, label_errors, label_value_errors, qualified_name_errors, subdomain_errors},
    schema::{cel_cost, formats::FORMATS, go_url::Url, re2},
};

/// A type of values that only the functions of Kubernetes know.
pub(super) trait OpaqueType: Clone + Debug + PartialEq + Send + Sync + 'static {
    const TYPE: &'static Type;
}

/// A value of such a type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opaque<T>(pub(super) T);

impl<T: OpaqueType> Val for Opaque<T> {
    fn get_type(&self) -> &Type {
        T::TYPE
    }

    fn cel_type() -> &'static Type {
        T::TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Opaque<T>>() == Some(self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }
}

impl<T: OpaqueType> StaticVal for Opaque<T> {}

impl<T> From<T> for Opaque<T> {
    fn from(value: T) -> Opaque<T> {
        Opaque(value)
    }
}

/// Copies a value of one type.
pub(super) type Copy = fn(&dyn Val) -> Option<Box<dyn Val>>;

pub(super) fn copy<T: OpaqueType>(value: &dyn Val) -> Option<Box<dyn Val>> {
    value.downcast_ref::<Opaque<T>>().map(|value| Box::new(value.clone()) as Box<dyn Val>)
}

/// For all types of this file. The crate `cel` copies values of other types.
pub(super) const COPIES: [Copy; 6] =
    [copy::<IpAddr>, copy::<Network>, copy::<Url>, copy::<NamedFormat>, copy::<Quantity>, copy::<Semver>];

/// Declares functions, with the names and types of their arguments.
macro_rules! function_table {
    ($env:ident: $($style:ident $name:literal ($($arg:ident: $type:ty),*) -> $returned:ident = $body:expr;)*) => {$(
        $style($env, $name, vec![$(<$type as Val>::cel_type().to_owned()),*], |args| {
            let mut args = args.iter();
            $(
                let next = args.next().and_then(|arg| arg.downcast_ref::<$type>());
                let $arg = next.ok_or(ExecutionError::MissingArgumentOrTarget)?;
            )*
            Ok(CowVal::owned($returned::from($body)))
        })?;
    )*};
}

pub(super) use function_table;

/// Declares all functions of Kubernetes, except for the authorizer's.
pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    declare_networks(env)?;
    declare_lists(env)?;
    declare_urls(env)?;
    declare_formats(env)?;
    declare_quantities(env)?;
    declare_versions(env)?;
    function_table! { env:
        method "find"(text: CelString, pattern: CelString) -> CelString
            = found(text.inner(), pattern.inner(), 1)?.pop().unwrap_or_default();
        method "findAll"(text: CelString, pattern: CelString) -> CelList
            = texts(found(text.inner(), pattern.inner(), -1)?);
        method "findAll"(text: CelString, pattern: CelString, max: CelInt) -> CelList
            = texts(found(text.inner(), pattern.inner(), *max.inner())?);
    }
    Ok(())
}

fn function(env: &mut Env, name: &str, types: Vec<Type>, body: Function) -> Result<(), DeclarationError> {
    env.add_overload(name, &overload(name, &types), types, body)
}

pub(super) fn method(
    env: &mut Env,
    name: &str,
    mut types: Vec<Type>,
    body: Function,
) -> Result<(), DeclarationError> {
    let id = overload(name, &types);
    let target = types.remove(0);
    env.add_member_overload(name, &id, target, types, body)
}

/// The id of an overload: `containsIP(net.CIDR,string)`.
fn overload(name: &str, types: &[Type]) -> String {
    let types: Vec<&str> = types.iter().map(Type::name).collect();
    format!("{name}({})", types.join(","))
}

pub(super) fn error(message: impl Into<String>) -> ExecutionError {
    ExecutionError::function_error("", message.into())
}

/// The error of a method whose argument fails.
fn no_such_overload(_: ExecutionError) -> ExecutionError {
    error("no such overload")
}

fn texts(all: Vec<String>) -> Vec<Box<dyn Val>> {
    all.into_iter().map(|text| Box::new(CelString::from(text)) as Box<dyn Val>).collect()
}

/// The parts of a text that match a regular expression, at most `max` of them. A negative number means no limit.
fn found(text: &str, pattern: &str, max: i64) -> Result<Vec<String>, ExecutionError> {
    let regex = re2::compile(pattern).map_err(|why| error(format!("Illegal regex: {why}")))?;
    // The expression may match between the bytes of a character.
    let all = regex.find_iter(text.as_bytes()).filter_map(|found| text.get(found.range()));
    Ok(all.take(usize::try_from(max).unwrap_or(usize::MAX)).map(str::to_owned).collect())
}

type Ip = Opaque<IpAddr>;

impl OpaqueType for IpAddr {
    const TYPE: &'static Type = &Type::new_unspecified_type("net.IP");
}

/// An address with the length of its prefix: `10.0.0.1/8`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

type Cidr = Opaque<Network>;

impl OpaqueType for Network {
    const TYPE: &'static Type = &Type::new_unspecified_type("net.CIDR");
}

fn declare_networks(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(IpAddr::TYPE.to_owned())?;
    env.add_type(Network::TYPE.to_owned())?;
    function_table! { env:
        function "isIP"(text: CelString) -> CelBool = ip(text).is_ok();
        function "ip"(text: CelString) -> Opaque = ip(text)?;
        function "ip.isCanonical"(text: CelString) -> CelBool = ip(text)?.to_string() == text.inner();
        function "string"(ip: Ip) -> CelString = ip.0.to_string();
        method "family"(ip: Ip) -> CelInt = if ip.0.is_ipv4() { 4 } else { 6 };
        method "isUnspecified"(ip: Ip) -> CelBool = ip.0.is_unspecified();
        method "isLoopback"(ip: Ip) -> CelBool = ip.0.is_loopback();
        method "isLinkLocalMulticast"(ip: Ip) -> CelBool = match ip.0 {
            IpAddr::V4(ip) => ip.octets().starts_with(&[224, 0, 0]),
            IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
        };
        method "isLinkLocalUnicast"(ip: Ip) -> CelBool = is_link_local(&ip.0);
        method "isGlobalUnicast"(ip: Ip) -> CelBool = !(ip.0.is_unspecified() || ip.0.is_loopback()
            || ip.0.is_multicast() || is_link_local(&ip.0) || ip.0 == IpAddr::from([255; 4]));

        function "isCIDR"(text: CelString) -> CelBool = cidr(text).is_ok();
        function "cidr"(text: CelString) -> Opaque = cidr(text)?;
        function "string"(cidr: Cidr) -> CelString = format!("{}/{}", cidr.0.address, cidr.0.bits);
        method "containsIP"(cidr: Cidr, text: CelString) -> CelBool = cidr.0.contains(ip(text).map_err(no_such_overload)?);
        method "containsIP"(cidr: Cidr, ip: Ip) -> CelBool = cidr.0.contains(ip.0);
        method "containsCIDR"(outer: Cidr, text: CelString) -> CelBool = outer.0.contains_all(cidr(text)?);
        method "containsCIDR"(outer: Cidr, inner: Cidr) -> CelBool = outer.0.contains_all(inner.0);
        method "ip"(cidr: Cidr) -> Opaque = cidr.0.address;
        method "prefixLength"(cidr: Cidr) -> CelInt = i64::from(cidr.0.bits);
        method "masked"(cidr: Cidr) -> Opaque = cidr.0.masked(cidr.0.address);
    }
    Ok(())
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Parses an address without a zone.
fn ip(text: &str) -> Result<IpAddr, ExecutionError> {
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            Err(error(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        Ok(ip) => Ok(ip),
        Err(_) => Err(error(format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        ))),
    }
}

fn cidr(text: &str) -> Result<Network, ExecutionError> {
    // kube-apiserver has this twice.
    const PREFIX: &str = "network address parse error during conversion from string: ";
    let error = |why: String| error(format!("{PREFIX}{why}"));
    let invalid = |why: &str| error(format!("{PREFIX}netip.ParsePrefix({text:?}): {why}"));
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| invalid("no '/'"))?;
    let parsed: Option<IpAddr> = address.parse().ok();
    let address = parsed.ok_or_else(|| invalid(&format!("ParseAddr({address:?}): unable to parse IP")))?;
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let bits: u32 = bits
        .parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| invalid(&format!("bad bits after slash: {bits:?}")))?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let bits = u8::try_from(bits).ok().filter(|bits| *bits <= bits_max);
    let bits = bits.ok_or_else(|| invalid("prefix length out of range"))?;
    match address {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            Err(error(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        _ => Ok(Network { address, bits }),
    }
}

impl Network {
    /// An address with only the bits of the prefix.
    fn masked(self, address: IpAddr) -> Network {
        let bits = u32::from(self.bits);
        let address = match address {
            IpAddr::V4(ip) => {
                IpAddr::V4((ip.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0)).into())
            }
            IpAddr::V6(ip) => {
                IpAddr::V6((ip.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0)).into())
            }
        };
        Network { address, bits: self.bits }
    }

    fn contains(self, ip: IpAddr) -> bool {
        self.address.is_ipv4() == ip.is_ipv4() && self.masked(ip) == self.masked(self.address)
    }

    fn contains_all(self, inner: Network) -> bool {
        self.bits <= inner.bits && self.contains(inner.address)
    }
}

impl OpaqueType for Url {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.URL");
}

fn declare_urls(env: &mut Env) -> Result<(), DeclarationError> {
    function_table! { env:
        function "isURL"(text: CelString) -> CelBool = Url::check(text).is_ok();
        function "url"(text: CelString) -> Opaque = Url::parse(text)
            .map_err(|why| error(format!("URL parse error during conversion from string: {why}")))?;
        method "getScheme"(url: Opaque<Url>) -> CelString = url.0.scheme.clone();
        method "getHost"(url: Opaque<Url>) -> CelString = url.0.host.clone();
        method "getHostname"(url: Opaque<Url>) -> CelString = url.0.host_and_port().0.to_owned();
        method "getPort"(url: Opaque<Url>) -> CelString = url.0.host_and_port().1.to_owned();
        method "getEscapedPath"(url: Opaque<Url>) -> CelString = url.0.path.clone();
        method "getQuery"(url: Opaque<Url>) -> CelMap = query(&url.0);
    }
    Ok(())
}

fn query(url: &Url) -> HashMap<CelMapKey<'static>, Box<dyn Val>> {
    let mut values: HashMap<String, Vec<String>> = HashMap::new();
    for (name, value) in url.query() {
        values.entry(name).or_default().push(value);
    }
    let entries = values.into_iter().map(|(name, values)| {
        (CelMapKey::from(name), Box::new(CelList::from(texts(values))) as Box<dyn Val>)
    });
    entries.collect()
}

/// The name of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NamedFormat(&'static str);

impl OpaqueType for NamedFormat {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.NamedFormat");
}

/// A list of formats, each with the errors of a text, and with the function that returns it.
macro_rules! formats {
    ($($name:literal, $errors:expr;)*) => {
        [$(($name, $errors, |_| Ok(CowVal::owned(Opaque(NamedFormat($name)))))),*]
    };
}

/// The errors of a text that does not have a format.
type Errors = fn(&str) -> Vec<String>;

const NAMED_FORMATS: [(&str, Errors, Function); 13] = formats! {
    "byte", |text| format_errors("byte", text, "invalid base64");
    "date", |text| format_errors("date", text, "invalid date");
    "datetime", |text| format_errors("datetime", text, "invalid datetime");
    "dns1035Label", dns_1035_errors;
    "dns1035LabelPrefix", |text| dns_1035_errors(&prefix(text));
    "dns1123Label", label_errors;
    "dns1123LabelPrefix", |text| label_errors(&prefix(text));
    "dns1123Subdomain", subdomain_errors;
    "dns1123SubdomainPrefix", |text| subdomain_errors(&prefix(text));
    "labelValue", label_value_errors;
    "qualifiedName", qualified_name_errors;
    "uri", |text| Url::check(text).err().into_iter().collect();
    "uuid", |text| format_errors("uuid", text, "does not match the UUID format");
};

/// The error of a text that does not have a format of CRDs.
fn format_errors(name: &str, text: &str, error: &str) -> Vec<String> {
    let has = |(format, check): &(&str, fn(&str) -> bool)| *format == name && check(text);
    if FORMATS.iter().any(has) { Vec::new() } else { vec![error.to_owned()] }
}

/// A prefix of names may end with a hyphen.
fn prefix(text: &str) -> Cow<'_, str> {
    match text.strip_suffix('-').map(|start| (start.char_indices().next_back(), start)) {
        Some((Some((at, _)), start)) => format!("{}a", &start[..at]).into(),
        Some((None, _)) | None => text.into(),
    }
}

fn declare_formats(env: &mut Env) -> Result<(), DeclarationError> {
    for (name, _, named) in NAMED_FORMATS {
        function(env, &format!("format.{name}"), vec![], named)?;
    }
    function_table! { env:
        function "format.named"(name: CelString) -> CelOptional = {
            let format = NAMED_FORMATS.iter().find(|(named, ..)| *named == name.inner());
            format.map(|(name, ..)| Box::new(Opaque(NamedFormat(name))) as Box<dyn Val>)
        };
        method "validate"(format: Opaque<NamedFormat>, text: CelString) -> CelOptional = {
            let (_, errors, _) = NAMED_FORMATS.iter().find(|(name, ..)| *name == format.0.0)
                .ok_or(ExecutionError::MissingArgumentOrTarget)?;
            Some(errors(text)).filter(|all| !all.is_empty())
                .map(|all| Box::new(CelList::from(texts(all))) as Box<dyn Val>)
        };
    }
    Ok(())
}

impl OpaqueType for Quantity {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.Quantity");
}

fn declare_quantities(env: &mut Env) -> Result<(), DeclarationError> {
    function_table! { env:
        function "isQuantity"(text: CelString) -> CelBool = Quantity::parse(text).is_some();
        function "quantity"(text: CelString) -> Opaque
            = Quantity::parse(text).ok_or_else(|| error(Quantity::parse_error(text)))?;
        function "sign"(one: Opaque<Quantity>) -> CelInt = one.0.signum();
        method "isInteger"(one: Opaque<Quantity>) -> CelBool = one.0.whole().is_some();
        method "asInteger"(one: Opaque<Quantity>) -> CelInt
            = one.0.whole().ok_or_else(|| error("cannot convert value to integer"))?;
        method "asApproximateFloat"(one: Opaque<Quantity>) -> CelDouble = one.0.float();
        method "compareTo"(one: Opaque<Quantity>, other: Opaque<Quantity>) -> CelInt = one.0.compare(&other.0) as i64;
        method "isGreaterThan"(one: Opaque<Quantity>, other: Opaque<Quantity>) -> CelBool
            = one.0.compare(&other.0).is_gt();
        method "isLessThan"(one: Opaque<Quantity>, other: Opaque<Quantity>) -> CelBool
            = one.0.compare(&other.0).is_lt();
        method "add"(one: Opaque<Quantity>, other: Opaque<Quantity>) -> Opaque = one.0.add(&other.0, 1);
        method "add"(one: Opaque<Quantity>, int: CelInt) -> Opaque
            = one.0.add(&Quantity::from_int(*int.inner()), 1);
        method "sub"(one: Opaque<Quantity>, other: Opaque<Quantity>) -> Opaque = one.0.add(&other.0, -1);
        method "sub"(one: Opaque<Quantity>, int: CelInt) -> Opaque
            = one.0.add(&Quantity::from_int(*int.inner()), -1);
    }
    Ok(())
}

/// A semantic version. Its build metadata does not count.
#[derive(Clone, Debug)]
struct Semver(semver::Version);

impl PartialEq for Semver {
    fn eq(&self, other: &Semver) -> bool {
        self.0.cmp_precedence(&other.0).is_eq()
    }
}

impl OpaqueType for Semver {
    const TYPE: &'static Type = &Type::new_unspecified_type("kubernetes.Semver");
}

fn declare_versions(env: &mut Env) -> Result<(), DeclarationError> {
    function_table! { env:
        function "isSemver"(text: CelString) -> CelBool = version(text).is_ok();
        function "isSemver"(text: CelString, normalize: CelBool) -> CelBool
            = normalized(text, *normalize.inner()).and_then(|text| version(&text)).is_ok();
        function "semver"(text: CelString) -> Opaque = version(text)?;
        function "semver"(text: CelString, normalize: CelBool) -> Opaque
            = version(&normalized(text, *normalize.inner())?)?;
        method "major"(one: Opaque<Semver>) -> CelInt = one.0.0.major.cast_signed();
        method "minor"(one: Opaque<Semver>) -> CelInt = one.0.0.minor.cast_signed();
        method "patch"(one: Opaque<Semver>) -> CelInt = one.0.0.patch.cast_signed();
        method "compareTo"(one: Opaque<Semver>, other: Opaque<Semver>) -> CelInt
            = one.0.0.cmp_precedence(&other.0.0) as i64;
        method "isGreaterThan"(one: Opaque<Semver>, other: Opaque<Semver>) -> CelBool
            = one.0.0.cmp_precedence(&other.0.0).is_gt();
        method "isLessThan"(one: Opaque<Semver>, other: Opaque<Semver>) -> CelBool
            = one.0.0.cmp_precedence(&other.0.0).is_lt();
    }
    Ok(())
}

fn version(text: &str) -> Result<Semver, ExecutionError> {
    if text.is_empty() {
        return Err(error("Version string empty"));
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, patch] = parts[..] else { return Err(error("No Major.Minor.Patch elements found")) };
    let patch = patch.split(['+', '-']).next().unwrap_or_default();
    for (name, number) in [("major", major), ("minor", minor), ("patch", patch)] {
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error(format!("Invalid character(s) found in {name} number {number:?}")));
        }
        if number.len() > 1 && number.starts_with('0') {
            let name = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
            return Err(error(format!("{name} number must not contain leading zeroes {number:?}")));
        }
    }
    text.parse().map(Semver).map_err(|why: semver::Error| error(why.to_string()))
}

/// A version like `v1.02`, with its missing numbers and without leading zeros.
fn normalized(text: &str, normalize: bool) -> Result<String, ExecutionError> {
    if !normalize {
        return Ok(text.to_owned());
    }
    let mut parts: Vec<String> = Vec::new();
    for part in text.strip_prefix('v').unwrap_or(text).splitn(3, '.') {
        let digits = part.trim_start_matches('0');
        let lacks_digit = !digits.starts_with(|c: char| c.is_ascii_digit());
        parts.push(match part.len() {
            0 | 1 => part.to_owned(),
            _ => format!("{}{digits}", if lacks_digit { "0" } else { "" }),
        });
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err(error("short version cannot contain PreRelease/Build meta data"));
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

fn declare_lists(env: &mut Env) -> Result<(), DeclarationError> {
    method(env, "isSorted", vec![LIST_TYPE], |args| {
        let pairs = items(&args[0])
            .windows(2)
            .map(|pair| compare(pair[0], pair[1]))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(CowVal::owned(CelBool::from(pairs.into_iter().all(Ordering::is_le))))
    })?;
    method(env, "min", vec![LIST_TYPE], |args| first_of(&args[0], Ordering::Less, "min"))?;
    method(env, "max", vec![LIST_TYPE], |args| first_of(&args[0], Ordering::Greater, "max"))?;
    method(env, "sum", vec![LIST_TYPE], |args| {
        let mut sum: Option<Box<dyn Val>> = None;
        for item in items(&args[0]) {
            sum = Some(match sum {
                Some(sum) => {
                    sum.as_adder().ok_or(ExecutionError::MissingArgumentOrTarget)?.add(item)?.into_owned()
                }
                None => item.clone_as_boxed(),
            });
        }
        Ok(CowVal::Owned(sum.unwrap_or_else(|| Box::new(CelInt::from(0)))))
    })?;
    method(env, "indexOf", vec![LIST_TYPE, DYN_TYPE], |args| {
        Ok(index(items(&args[0]).iter().position(|item| item.equals(&*args[1]))))
    })?;
    method(env, "lastIndexOf", vec![LIST_TYPE, DYN_TYPE], |args| {
        Ok(index(items(&args[0]).iter().rposition(|item| item.equals(&*args[1]))))
    })?;
    function(env, "sets.contains", vec![LIST_TYPE, LIST_TYPE], |args| {
        let [one, other] = sets(&args)?;
        Ok(CowVal::owned(CelBool::from(contains_all(&one, &other))))
    })?;
    function(env, "sets.equivalent", vec![LIST_TYPE, LIST_TYPE], |args| {
        let [one, other] = sets(&args)?;
        Ok(CowVal::owned(CelBool::from(contains_all(&one, &other) && contains_all(&other, &one))))
    })?;
    function(env, "sets.intersects", vec![LIST_TYPE, LIST_TYPE], |args| {
        let [one, other] = sets(&args)?;
        Ok(CowVal::owned(CelBool::from(one.iter().any(|item| contains(&other, *item)))))
    })
}

fn items<'a, 'v>(list: &'a CowVal<'_, 'v>) -> Vec<&'a (dyn Val + 'v)> {
    let mut all = Vec::new();
    if let Some(list) = list.as_iterable() {
        let mut items = list.iter();
        while let Some(item) = items.next() {
            all.push(item);
        }
    }
    all
}

fn compare(one: &dyn Val, other: &dyn Val) -> Result<Ordering, ExecutionError> {
    one.as_comparer().ok_or_else(|| error("no such overload"))?.compare(other)
}

/// The first item that compares so with all other items.
fn first_of<'b, 'v>(
    list: &CowVal<'b, 'v>,
    wanted: Ordering,
    name: &str,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut first: Option<&dyn Val> = None;
    for item in items(list) {
        let is_first = match first {
            Some(first) => compare(item, first)? == wanted,
            None => true,
        };
        if is_first {
            first = Some(item);
        }
    }
    let first = first.ok_or_else(|| error(format!("{name} called on empty list")))?;
    Ok(CowVal::Owned(first.clone_as_boxed()))
}

fn index<'b, 'v>(at: Option<usize>) -> CowVal<'b, 'v> {
    CowVal::owned(CelInt::from(at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)))
}

/// The two lists of a function of sets, which compares each item with all others.
fn sets<'a, 'v>(args: &'a [CowVal<'_, 'v>]) -> Result<[Vec<&'a (dyn Val + 'v)>; 2], ExecutionError> {
    let [one, other] = [&args[0], &args[1]].map(items);
    cel_cost::charge((one.len() as u64).saturating_mul(other.len() as u64))?;
    Ok([one, other])
}

fn contains(all: &[&(dyn Val + '_)], wanted: &(dyn Val + '_)) -> bool {
    all.iter().any(|item| item.equals(wanted))
}

fn contains_all(all: &[&(dyn Val + '_)], wanted: &[&(dyn Val + '_)]) -> bool {
    wanted.iter().all(|wanted| contains(all, *wanted))
}
