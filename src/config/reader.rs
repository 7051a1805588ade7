//! Typed access to the top-level fields of a JSON object.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::validate::MAX_SIZE;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// Longest value quoted in an error.
const QUOTED_CHARS: usize = 80;

/// The fields of one `config.json`.
#[derive(Debug)]
pub(super) struct Reader {
    fields: BTreeMap<String, Value>,
}

/// Reads one typed field: `None` where it is absent.
pub(super) type Read<T> = fn(&Reader, &str) -> Result<Option<T>>;

impl Reader {
    /// Parses an object. Text that is no JSON object is [`Error::Input`]; a key given twice with two values is
    /// [`Error::Config`].
    pub(super) fn parse(text: &str) -> Result<Self> {
        let Entries(entries) = serde_json::from_str(text)
            .map_err(|e| Error::Input { what: "config.json".to_owned(), reason: e.to_string() })?;
        let mut fields = BTreeMap::new();
        for (field, value) in entries {
            match fields.get(&field) {
                Some(first) if *first != value => {
                    let value = format!("given twice, as {} and as {}", quoted(first), quoted(&value));
                    return Err(Error::config(field, value, "one value"));
                }
                _ => fields.insert(field, value),
            };
        }
        Ok(Self { fields })
    }

    /// A non-negative integer within [`MAX_SIZE`]; narrower ranges are the business of whoever asks.
    pub(super) fn int(&self, field: &str) -> Result<Option<usize>> {
        self.typed(field, &format!("an integer in 0..={MAX_SIZE}"), as_size)
    }

    pub(super) fn float(&self, field: &str) -> Result<Option<f64>> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub(super) fn bool(&self, field: &str) -> Result<Option<bool>> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(super) fn string(&self, field: &str) -> Result<Option<String>> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A list of layer numbers; null stands for the empty list, as in the files' own classes.
    pub(super) fn int_list(&self, field: &str) -> Result<Option<Vec<usize>>> {
        self.typed(field, "a list of layer numbers", |value| match value {
            Value::Null => Some(Vec::new()),
            Value::Array(items) => items.iter().map(as_size).collect(),
            _ => None,
        })
    }

    /// An element type; null stands for "not stated".
    pub(super) fn dtype(&self, field: &str) -> Result<Option<DType>> {
        let dtype = self.typed(field, "float32, bfloat16, float16 or null", |value| match value {
            Value::Null => Some(None),
            Value::String(name) => match name.as_str() {
                "float32" => Some(Some(DType::F32)),
                "bfloat16" => Some(Some(DType::BF16)),
                "float16" => Some(Some(DType::F16)),
                _ => None,
            },
            _ => None,
        })?;
        Ok(dtype.flatten())
    }

    /// A field that goes by several names, with the name the file uses. All that are present must agree.
    pub(super) fn one_of<T: PartialEq>(
        &self,
        names: &[&'static str],
        read: Read<T>,
    ) -> Result<Option<(&'static str, T)>> {
        let mut found: Option<(&'static str, T)> = None;
        for &name in names {
            let Some(value) = read(self, name)? else { continue };
            match &found {
                None => found = Some((name, value)),
                Some((_, first)) if *first == value => {}
                Some((first, _)) => {
                    let value = format!("{} while {name} is {}", self.quote(first), self.quote(name));
                    return Err(Error::config(*first, value, format!("one value for {}", names.join(", "))));
                }
            }
        }
        Ok(found)
    }

    /// An integer that must be there, with the name the file uses. The first name is the one to ask for.
    pub(super) fn required(&self, names: &[&'static str]) -> Result<(&'static str, usize)> {
        if let Some(found) = self.one_of(names, Self::int)? {
            return Ok(found);
        }
        let (field, others) = names.split_first().map_or(("", &[][..]), |(first, others)| (*first, others));
        let allowed = match others {
            [] => "an integer".to_owned(),
            _ => format!("an integer, under this name or {}", others.join(" or ")),
        };
        Err(Error::config(field, "missing", allowed))
    }

    /// Refuses any value of `field` but those given; absent is fine.
    pub(super) fn only(&self, field: &str, allowed: &[Value], why: &str) -> Result<()> {
        match self.fields.get(field) {
            Some(value) if !allowed.iter().any(|a| same(a, value)) => {
                let allowed: Vec<String> = allowed.iter().map(quoted).collect();
                Err(Error::config(field, quoted(value), format!("{} or absent: {why}", allowed.join(", "))))
            }
            _ => Ok(()),
        }
    }

    fn typed<T>(&self, field: &str, allowed: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| Error::config(field, quoted(value), allowed)),
        }
    }

    fn quote(&self, field: &str) -> String {
        self.fields.get(field).map_or_else(|| "missing".to_owned(), quoted)
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= MAX_SIZE)
}

/// Equality that does not tell 1 from 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// The value as JSON, cut where it is long.
fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => text.get(..end).map_or_else(String::new, |start| format!("{start}..")),
        None => text,
    }
}

/// An object as a list, so that repeated keys stay visible.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}
