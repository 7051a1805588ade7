//! What a cubin or PTX says of its kernels: that they are there, their parameters, their limits.

use std::ffi::{CStr, c_char, c_void};

/// Machine code or PTX.
pub(crate) struct Image {
    bytes: Vec<u8>,
}

/// A kernel as its image describes it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Described {
    /// Offset and bytes of each parameter; only bytes in PTX.
    pub(crate) params: Vec<(usize, usize)>,
    /// Threads of a block at most; 0 where it does not say.
    pub(crate) max_threads: u32,
    pub(crate) registers: u32,
}

struct Section<'a> {
    name: &'a [u8],
    bytes: &'a [u8],
    info: u32,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).and_then(|bytes| usize::try_from(u64::from_le_bytes(bytes)).ok())
}

const ELF: &[u8] = b"\x7fELF";

impl Image {
    /// Copies an image, whose length is in its headers, or which ends with a zero byte.
    pub(crate) unsafe fn copy(from: *const c_void) -> Option<Self> {
        let first = from.cast::<u8>();
        // SAFETY: the caller of the driver gives an image; an ELF header has 64 bytes, and says where its tables end.
        unsafe {
            if !(0..4).all(|i| *first.add(i) == ELF[i]) {
                let bytes = CStr::from_ptr(from.cast::<c_char>()).to_bytes().to_vec();
                return Self::new(bytes);
            }
            let head = std::slice::from_raw_parts(first, 64);
            let sections = u64_at(head, 40)? + u16_at(head, 58)? * u16_at(head, 60)?;
            let segments = u64_at(head, 32)? + u16_at(head, 54)? * u16_at(head, 56)?;
            let table = std::slice::from_raw_parts(first, sections.max(segments));
            let end = Self { bytes: table.to_vec() }.end()?;
            Self::new(std::slice::from_raw_parts(first, end.max(table.len())).to_vec())
        }
    }

    /// An image, if it is one.
    pub(crate) fn new(bytes: Vec<u8>) -> Option<Self> {
        let image = Self { bytes };
        let fine = if image.is_cubin() { image.sections().is_some() } else { image.text().contains(".version") };
        fine.then_some(image)
    }

    fn is_cubin(&self) -> bool {
        self.bytes.starts_with(ELF)
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// Where the last section ends.
    fn end(&self) -> Option<usize> {
        let (table, count) = (u64_at(&self.bytes, 40)?, u16_at(&self.bytes, 60)?);
        let end = |i: usize| {
            let head = table + 64 * i;
            const NO_BITS: u32 = 8;
            if u32_at(&self.bytes, head + 4)? == NO_BITS {
                Some(0)
            } else {
                Some(u64_at(&self.bytes, head + 24)? + u64_at(&self.bytes, head + 32)?)
            }
        };
        (0..count).map(end).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn sections(&self) -> Option<Vec<Section<'_>>> {
        let bytes = &self.bytes;
        let (table, count, names) = (u64_at(bytes, 40)?, u16_at(bytes, 60)?, u16_at(bytes, 62)?);
        let range = |i: usize| {
            let head = table + 64 * i;
            const NO_BITS: u32 = 8;
            if u32_at(bytes, head + 4)? == NO_BITS {
                return Some(&bytes[..0]);
            }
            let begin = u64_at(bytes, head + 24)?;
            bytes.get(begin..begin.checked_add(u64_at(bytes, head + 32)?)?)
        };
        let names = range(names)?;
        let section = |i: usize| {
            let head = table + 64 * i;
            let name = names.get(u32_at(bytes, head)? as usize..)?;
            let name = &name[..name.iter().position(|&byte| byte == 0)?];
            Some(Section { name, bytes: range(i)?, info: u32_at(bytes, head + 44)? })
        };
        (0..count).map(section).collect()
    }

    /// Architecture of a cubin: 80 for sm_80.
    pub(crate) fn sm(&self) -> Option<u32> {
        if !self.is_cubin() {
            return None;
        }
        let flags = u32_at(&self.bytes, 48)?;
        // Since CUDA 13 the version stands in the second byte.
        const SECOND_BYTE: u8 = 8;
        Some(if self.bytes[8] >= SECOND_BYTE { flags >> 8 & 0xff } else { flags & 0xff })
    }

    /// A kernel of this name; `None` where there is none.
    pub(crate) fn kernel(&self, name: &str) -> Option<Described> {
        if self.is_cubin() { self.in_cubin(name) } else { self.in_ptx(name) }
    }

    fn in_cubin(&self, name: &str) -> Option<Described> {
        let sections = self.sections()?;
        let find = |wanted: &str| sections.iter().find(|section| section.name == wanted.as_bytes());
        let code = find(&format!(".text.{name}"))?;
        let mut described = Described::default();
        let mut params: Vec<(usize, (usize, usize))> = Vec::new();
        const MAX_THREADS: u8 = 0x05;
        const KPARAM_INFO: u8 = 0x17;
        const REGCOUNT: u8 = 0x2f;
        for (attribute, value) in attributes(find(&format!(".nv.info.{name}")).map_or(&[], |section| section.bytes)) {
            match attribute {
                KPARAM_INFO => {
                    let bytes = u32_at(value, 8)? >> 18;
                    params.push((u16_at(value, 4)?, (u16_at(value, 6)?, bytes as usize)));
                }
                MAX_THREADS => described.max_threads = u32_at(value, 0)? * u32_at(value, 4)? * u32_at(value, 8)?,
                _ => {}
            }
        }
        params.sort_unstable();
        described.params = params.into_iter().map(|(_, param)| param).collect();
        let symbol = code.info & 0x00ff_ffff;
        for (attribute, value) in attributes(find(".nv.info").map_or(&[], |section| section.bytes)) {
            if attribute == REGCOUNT && u32_at(value, 0) == Some(symbol) {
                described.registers = u32_at(value, 4)?;
            }
        }
        Some(described)
    }

    fn in_ptx(&self, name: &str) -> Option<Described> {
        let text = self.text();
        let list = text.split_once(&format!(".entry {name}("))?.1;
        let list = &list[..list.find(')')?];
        let bytes = |line: &str| -> Option<usize> {
            if let (Some(open), Some(close)) = (line.rfind('['), line.rfind(']')) {
                return line.get(open + 1..close)?.parse().ok();
            }
            let ty =
                line.split_whitespace().find(|word| word.starts_with('.') && *word != ".param" && *word != ".align")?;
            Some(ty.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().ok()? / 8)
        };
        let params = list.lines().filter(|line| line.trim_start().starts_with(".param"));
        let params = params.map(|line| Some((0, bytes(line)?))).collect::<Option<_>>()?;
        Some(Described { params, ..Described::default() })
    }
}

/// Attributes of a `.nv.info` section that have bytes of their own.
fn attributes(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    const WITH_BYTES: u8 = 4;
    let mut found = Vec::new();
    while let (Some(&format), Some(&attribute), Some(len)) = (bytes.first(), bytes.get(1), u16_at(bytes, 2)) {
        let len = if format == WITH_BYTES { len } else { 0 };
        let Some(value) = bytes.get(4..4 + len) else { break };
        if format == WITH_BYTES {
            found.push((attribute, value));
        }
        bytes = &bytes[4 + len..];
    }
    found
}
