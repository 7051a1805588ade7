//! Loads as a NumPy array file.
//!
//! Versions 1 to 3; 2-D; little-endian signed and unsigned integers of 8 to 64 bits or floats of 32 and 64 bits, in C or Fortran
//! order. Format: NumPy Enhancement Proposal 1.

use std::str::FromStr;

use lrmoe::Result;

use super::loads::{Matrix, Source};

const MAGIC: &[u8] = b"\x93NUMPY";

pub(super) fn parse(source: &Source<'_>, bytes: &[u8]) -> Result<Matrix> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| source.error("does not begin as a .npy file"))?;
    let short = || source.error("ends within the header");
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (length, rest) = match version[0] {
        1 => rest.split_first_chunk().map(|(n, rest)| (usize::from(u16::from_le_bytes(*n)), rest)),
        2 | 3 => rest.split_first_chunk().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        other => return Err(source.error(format!("has .npy version {other}; allowed: 1 to 3"))),
    }
    .ok_or_else(short)?;
    let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
    let header = std::str::from_utf8(header).map_err(|_| source.error("has a header that is not text"))?;
    let header: Header = header.parse().map_err(|reason| source.error(format!("has a malformed header: {reason}")))?;
    let [rows, columns] = header.shape[..] else {
        return Err(source.error(format!("has {} dimensions; expected 2, ranks x experts", header.shape.len())));
    };
    let element = Element::named(&header.descr).ok_or_else(|| {
        let allowed = "little-endian integers of 8 to 64 bits, floats of 32 and 64 bits";
        source.error(format!("has elements {:?}; allowed: {allowed}", header.descr))
    })?;
    let size = Matrix::check_size(source, rows, columns)?;
    let expected = size * element.bytes();
    if data.len() != expected {
        let got = data.len();
        return Err(source.error(format!("has {got} bytes of data; {rows} x {columns} elements take {expected}")));
    }
    Matrix::collect(source, (rows, columns), |row, column| {
        let at = if header.fortran_order { column * rows + row } else { row * columns + column };
        element.read(&data[at * element.bytes()..])
    })
}

/// An element type, in little-endian order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Element {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Element {
    /// By NumPy's array protocol string.
    fn named(descr: &str) -> Option<Self> {
        Some(match descr {
            "|i1" | "<i1" => Self::I8,
            "|u1" | "<u1" => Self::U8,
            "<i2" => Self::I16,
            "<u2" => Self::U16,
            "<i4" => Self::I32,
            "<u4" => Self::U32,
            "<i8" => Self::I64,
            "<u8" => Self::U64,
            "<f4" => Self::F32,
            "<f8" => Self::F64,
            _ => return None,
        })
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The element at the start of `data`, which has at least [`Element::bytes`] of them. Rounded beyond 2^53.
    pub(super) fn read(self, data: &[u8]) -> f64 {
        fn first<const N: usize>(data: &[u8]) -> [u8; N] {
            data.first_chunk().copied().unwrap_or([0; N])
        }
        match self {
            Self::I8 => f64::from(i8::from_le_bytes(first(data))),
            Self::U8 => f64::from(u8::from_le_bytes(first(data))),
            Self::I16 => f64::from(i16::from_le_bytes(first(data))),
            Self::U16 => f64::from(u16::from_le_bytes(first(data))),
            Self::I32 => f64::from(i32::from_le_bytes(first(data))),
            Self::U32 => f64::from(u32::from_le_bytes(first(data))),
            Self::I64 => i64::from_le_bytes(first(data)) as f64,
            Self::U64 => u64::from_le_bytes(first(data)) as f64,
            Self::F32 => f64::from(f32::from_le_bytes(first(data))),
            Self::F64 => f64::from_le_bytes(first(data)),
        }
    }
}

/// The header: a Python dictionary literal with exactly these three keys.
#[derive(Debug)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut tokens = Tokens(text);
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        tokens.expect("{")?;
        while !tokens.accept("}") {
            let key = tokens.string()?;
            tokens.expect(":")?;
            let repeated = match key.as_str() {
                "descr" => descr.replace(tokens.string()?).is_some(),
                "fortran_order" => fortran_order.replace(tokens.boolean()?).is_some(),
                "shape" => shape.replace(tokens.tuple()?).is_some(),
                _ => return Err(format!("unknown key {key:?}")),
            };
            if repeated {
                return Err(format!("key {key:?} twice"));
            }
            if !tokens.accept(",") {
                tokens.expect("}")?;
                break;
            }
        }
        if !tokens.0.trim().is_empty() {
            return Err("text after the dictionary".into());
        }
        let missing = |key: &str| format!("no key {key:?}");
        Ok(Self {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// What is left of the header.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn accept(&mut self, token: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> std::result::Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(self.wrong(token)) }
    }

    fn wrong(&self, expected: &str) -> String {
        let found: String = self.0.trim_start().chars().take(20).collect();
        format!("expected {expected} at {found:?}")
    }

    /// Everything up to a character that `ends` the token.
    fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        let (token, rest) = self.0.split_at(self.0.find(ends).unwrap_or(self.0.len()));
        self.0 = rest;
        token
    }

    fn string(&mut self) -> std::result::Result<String, String> {
        let quote = ["'", "\""].into_iter().find(|quote| self.accept(quote)).ok_or_else(|| self.wrong("a string"))?;
        let string = self.until(|c| quote.contains(c));
        self.expect(quote)?;
        Ok(string.to_string())
    }

    fn boolean(&mut self) -> std::result::Result<bool, String> {
        if self.accept("True") {
            Ok(true)
        } else if self.accept("False") {
            Ok(false)
        } else {
            Err(self.wrong("True or False"))
        }
    }

    fn tuple(&mut self) -> std::result::Result<Vec<usize>, String> {
        self.expect("(")?;
        let mut numbers = Vec::new();
        while !self.accept(")") {
            self.0 = self.0.trim_start();
            let wrong = self.wrong("a size");
            // Python 2 wrote long integers with an L behind them.
            let digits = self.until(|c| !c.is_ascii_digit());
            self.accept("L");
            numbers.push(digits.parse().map_err(|_| wrong)?);
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(numbers)
    }
}
