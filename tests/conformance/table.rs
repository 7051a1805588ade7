//! Cases as data: buffers, commands, and what must be in the buffers afterwards.

use half::{bf16, f16};
use lrmoe::kernel::Kernel;
use lrmoe::recording::Command;
use lrmoe::{DType, HostData};

use crate::devices::Runner;

/// One rounding to f32, relative: half a unit in the last place.
pub const ROUNDING: f64 = 5.960_464_477_539_063e-8;

/// Roundings allowed where `exp` takes part: two units in the last place for `exp` itself, and the sum, quotient and
/// products around it.
pub const EXP: f64 = 12.0;

/// Extra elements behind every output, which must stay as they were.
const TAIL: usize = 7;

/// What outputs hold before the run: a NaN no arithmetic makes, and an index out of every range.
const CANARY_F32: u32 = 0x7fc5_a5a5;
const CANARY_16: u16 = 0x7fe5;
const CANARY_U32: u32 = 0xdead_beef;

/// Buffer number within a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub usize);

/// What one element must be afterwards.
#[derive(Debug, Clone, Copy)]
pub enum Want {
    /// A number: within `units` roundings of the sum `size` of the magnitudes that went into it. Infinite where the value is
    /// too large for f32, NaN where it is NaN.
    Near { value: f64, size: f64, units: f64 },
    /// These bits, in the low half for 16-bit types.
    Bits(u32),
    /// What the buffer held before.
    Held,
}

/// A number with the sum of the magnitudes that went into it.
pub fn near(value: f64, size: f64, units: f64) -> Want {
    Want::Near { value, size: size.abs().max(value.abs()), units }
}

/// These f32 bits.
pub fn exactly(values: &[f32]) -> Vec<Want> {
    values.iter().map(|v| Want::Bits(v.to_bits())).collect()
}

/// These integers.
pub fn integers(values: &[u32]) -> Vec<Want> {
    values.iter().copied().map(Want::Bits).collect()
}

/// A relation between buffers afterwards.
type Relation = Box<dyn Fn(&[HostData]) -> Result<(), String> + Send + Sync>;

/// Commands on buffers with known content, and the content they must leave.
pub struct Case {
    name: String,
    buffers: Vec<(&'static str, HostData)>,
    commands: Vec<Command<Slot>>,
    wants: Vec<(Slot, Vec<Want>)>,
    relations: Vec<Relation>,
    refusal: Option<Vec<&'static str>>,
}

/// A check that needs several runs.
#[derive(Clone)]
pub struct Property {
    /// `kernel::name`.
    pub name: &'static str,
    /// What must hold on a device.
    pub check: fn(&dyn Runner) -> Result<(), String>,
}

impl Case {
    /// Without buffers and commands.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            buffers: Vec::new(),
            commands: Vec::new(),
            wants: Vec::new(),
            relations: Vec::new(),
            refusal: None,
        }
    }

    /// A buffer with this content, of exactly this length.
    pub fn data(&mut self, name: &'static str, data: HostData) -> Slot {
        self.buffers.push((name, data));
        Slot(self.buffers.len() - 1)
    }

    /// An f32 input.
    pub fn f32(&mut self, name: &'static str, values: &[f32]) -> Slot {
        self.data(name, HostData::F32(values.to_vec()))
    }

    /// An f32 input that may be absent.
    pub fn optional_f32(&mut self, name: &'static str, values: Option<&[f32]>) -> Option<Slot> {
        values.map(|values| self.f32(name, values))
    }

    /// A u32 input.
    pub fn u32(&mut self, name: &'static str, values: &[u32]) -> Slot {
        self.data(name, HostData::U32(values.to_vec()))
    }

    /// A u32 input that may be absent.
    pub fn optional_u32(&mut self, name: &'static str, values: Option<&[u32]>) -> Option<Slot> {
        values.map(|values| self.u32(name, values))
    }

    /// A float input stored as `dtype`, with the values that it then has.
    pub fn floats(&mut self, name: &'static str, values: &[f32], dtype: DType) -> (Slot, Vec<f64>) {
        let data = stored(values, dtype);
        let wide = (0..data.len()).map(|i| number(&data, i)).collect();
        (self.data(name, data), wide)
    }

    /// An output that nobody has written, with a tail that nobody may write.
    pub fn out(&mut self, name: &'static str, dtype: DType, len: usize) -> Slot {
        self.data(name, canary(dtype, len + TAIL))
    }

    /// An output whose length is its shape.
    pub fn out_exact(&mut self, name: &'static str, dtype: DType, len: usize) -> Slot {
        self.data(name, canary(dtype, len))
    }

    /// A buffer that is read and written, with a tail that nobody may write.
    pub fn in_out(&mut self, name: &'static str, values: &[f32], dtype: DType) -> Slot {
        let mut data = stored(values, dtype);
        match (&mut data, canary(dtype, TAIL)) {
            (HostData::F32(v), HostData::F32(tail)) => v.extend(tail),
            (HostData::BF16(v), HostData::BF16(tail)) => v.extend(tail),
            (HostData::F16(v), HostData::F16(tail)) => v.extend(tail),
            _ => unreachable!("values are floats"),
        }
        self.data(name, data)
    }

    /// Appends a kernel.
    pub fn run(&mut self, kernel: impl Into<Kernel<Slot>>) {
        self.commands.push(Command::Dispatch(kernel.into()));
    }

    /// Appends a command.
    pub fn command(&mut self, command: Command<Slot>) {
        self.commands.push(command);
    }

    /// What a buffer holds afterwards; elements behind the list stay as they were, as do buffers without a list.
    pub fn want(&mut self, slot: Slot, wants: Vec<Want>) {
        self.wants.push((slot, wants));
    }

    /// Something else that must hold of all buffers afterwards.
    pub fn relation(&mut self, check: impl Fn(&[HostData]) -> Result<(), String> + Send + Sync + 'static) {
        self.relations.push(Box::new(check));
    }

    /// The case is refused with a message that holds all of these.
    #[must_use]
    pub fn refused(mut self, fragments: &[&'static str]) -> Self {
        self.refusal = Some(fragments.to_vec());
        self
    }

    /// Name of the kernel, or of the command.
    pub fn kernel(&self) -> &'static str {
        match &self.commands[0] {
            Command::Dispatch(kernel) => kernel.name(),
            Command::Fill { .. } => "fill",
            Command::Copy { .. } => "copy",
        }
    }

    /// `kernel::case`.
    pub fn title(&self) -> String {
        format!("{}::{}", self.kernel(), self.name.replace(' ', "_"))
    }

    /// Whether the case is to be refused.
    pub fn fails(&self) -> bool {
        self.refusal.is_some()
    }

    /// Names and contents of the buffers before the run.
    pub fn buffers(&self) -> &[(&'static str, HostData)] {
        &self.buffers
    }

    /// What is run.
    pub fn commands(&self) -> &[Command<Slot>] {
        &self.commands
    }

    /// All buffers after a run, as bits; NaN of any kind is one and the same.
    pub fn bits(&self, runner: &dyn Runner) -> Result<Vec<Vec<u32>>, String> {
        let after = runner.run(self).map_err(|e| format!("{}: {e}", self.title()))?;
        Ok(after.iter().map(|data| (0..data.len()).map(|i| canonical(data, i)).collect()).collect())
    }

    /// Runs the case and compares every element of every buffer.
    pub fn check(&self, runner: &dyn Runner) -> Result<(), String> {
        let after = match (runner.run(self), &self.refusal) {
            (Ok(after), None) => after,
            (Ok(_), Some(_)) => return Err("was accepted".into()),
            (Err(error), None) => return Err(format!("was refused: {error}")),
            (Err(error), Some(fragments)) => {
                let text = error.to_string();
                return match fragments.iter().find(|fragment| !text.contains(**fragment)) {
                    Some(fragment) => Err(format!("the message lacks `{fragment}`: {text}")),
                    None => Ok(()),
                };
            }
        };
        let mut failures = Vec::new();
        for (i, ((name, before), after)) in self.buffers.iter().zip(&after).enumerate() {
            let wants = self.wants.iter().find(|(slot, _)| slot.0 == i).map_or(&[][..], |(_, wants)| wants);
            assert!(wants.len() <= before.len(), "more is wanted of `{name}` than it holds");
            for element in 0..before.len() {
                let want = wants.get(element).unwrap_or(&Want::Held);
                if let Err(why) = compare(want, before, after, element, runner) {
                    failures.push(format!("`{name}`[{element}]: {why}"));
                }
            }
        }
        failures.extend(self.relations.iter().filter_map(|check| check(&after).err()));
        match failures.len() {
            0 => Ok(()),
            n => Err(format!("{n} failures:\n  {}", failures[..n.min(12)].join("\n  "))),
        }
    }
}

fn compare(want: &Want, before: &HostData, after: &HostData, i: usize, runner: &dyn Runner) -> Result<(), String> {
    match *want {
        Want::Held if bits(after, i) == bits(before, i) => Ok(()),
        Want::Held => {
            Err(format!("was {:#x} and became {} ({:#x})", bits(before, i), number(after, i), bits(after, i)))
        }
        Want::Bits(want) if bits(after, i) == want => Ok(()),
        Want::Bits(want) => {
            Err(format!("is {} ({:#x}), expected the bits {want:#x}", number(after, i), bits(after, i)))
        }
        Want::Near { value, size, units } => {
            let got = number(after, i);
            if value.is_nan() || (value as f32).is_infinite() {
                let same = if value.is_nan() { got.is_nan() } else { got == f64::from(value as f32) };
                return if same { Ok(()) } else { Err(format!("is {got}, expected {value}")) };
            }
            let bound = runner.factor() * units * (ROUNDING * size + runner.tiny());
            // Written so that NaN fails.
            let within = (got - value).abs() <= bound;
            if within { Ok(()) } else { Err(format!("is {got:e}, expected {value:e} within {bound:.1e}")) }
        }
    }
}

fn canary(dtype: DType, len: usize) -> HostData {
    match dtype {
        DType::F32 => HostData::F32(vec![f32::from_bits(CANARY_F32); len]),
        DType::BF16 => HostData::BF16(vec![bf16::from_bits(CANARY_16); len]),
        DType::F16 => HostData::F16(vec![f16::from_bits(CANARY_16); len]),
        DType::U32 => HostData::U32(vec![CANARY_U32; len]),
    }
}

fn stored(values: &[f32], dtype: DType) -> HostData {
    match dtype {
        DType::F32 => HostData::F32(values.to_vec()),
        DType::BF16 => HostData::BF16(values.iter().copied().map(bf16::from_f32).collect()),
        DType::F16 => HostData::F16(values.iter().copied().map(f16::from_f32).collect()),
        DType::U32 => unreachable!("values are floats"),
    }
}

/// Bits of an element, in the low half for 16-bit types.
pub fn bits(data: &HostData, i: usize) -> u32 {
    match data {
        HostData::F32(v) => v[i].to_bits(),
        HostData::BF16(v) => v[i].to_bits().into(),
        HostData::F16(v) => v[i].to_bits().into(),
        HostData::U32(v) => v[i],
    }
}

fn canonical(data: &HostData, i: usize) -> u32 {
    let is_nan = !matches!(data, HostData::U32(_)) && number(data, i).is_nan();
    if is_nan { f32::NAN.to_bits() } else { bits(data, i) }
}

/// An element as a number.
pub fn number(data: &HostData, i: usize) -> f64 {
    match data {
        HostData::F32(v) => v[i].into(),
        HostData::BF16(v) => v[i].to_f64(),
        HostData::F16(v) => v[i].to_f64(),
        HostData::U32(v) => v[i].into(),
    }
}

/// Offsets of groups of these sizes.
pub fn offsets(counts: &[usize]) -> Vec<u32> {
    let mut sum = 0;
    std::iter::once(0).chain(counts.iter().map(|count| (sum += *count as u32, sum).1)).collect()
}

/// f32 values as the oracle's numbers.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
