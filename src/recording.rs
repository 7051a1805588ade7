//! A plain list of commands: what to run, in order, on which buffers.
//!
//! Operations append to a recording and never call a device. One place holds the algorithm; any backend executes it.

use crate::backend::Buffer;
use crate::kernel::{Access, Kernel};
use crate::{Error, Result};

/// One step of a recording.
#[derive(Debug, Clone)]
pub enum Command<Buf> {
    /// Run a kernel.
    Dispatch(Kernel<Buf>),
    /// Set every 32-bit word (f32, u32) or every element (bf16, f16: the low half) of a buffer to a bit pattern.
    Fill {
        /// Target.
        buffer: Buf,
        /// The pattern.
        bits: u32,
    },
    /// Copy all elements; lengths and types are equal.
    Copy {
        /// From.
        src: Buf,
        /// To.
        dst: Buf,
    },
}

impl<Buf> Command<Buf> {
    /// Kernel name, `fill` or `copy`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dispatch(kernel) => kernel.name(),
            Self::Fill { .. } => "fill",
            Self::Copy { .. } => "copy",
        }
    }
}

/// Commands in the order in which they take effect.
#[derive(Debug, Clone)]
pub struct Recording<Buf> {
    commands: Vec<Command<Buf>>,
}

impl<Buf> Default for Recording<Buf> {
    fn default() -> Self {
        Self { commands: Vec::new() }
    }
}

impl<Buf: Buffer> Recording<Buf> {
    /// An empty recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// The commands so far.
    pub fn commands(&self) -> &[Command<Buf>] {
        &self.commands
    }

    /// Appends a kernel.
    ///
    /// # Errors
    /// [`Error::Busy`] where a buffer that the kernel writes overlaps another one of its buffers.
    pub fn dispatch(&mut self, kernel: impl Into<Kernel<Buf>>) -> Result<()> {
        let kernel = kernel.into();
        let bindings = kernel.bindings();
        for (i, a) in bindings.iter().enumerate() {
            for b in &bindings[i + 1..] {
                if a.access == Access::Read && b.access == Access::Read {
                    continue;
                }
                if let (Some(x), Some(y)) = (a.buffer, b.buffer)
                    && x.shares_memory(y)
                {
                    return Err(Error::Busy {
                        buffer: x.name().to_owned(),
                        user: format!("both `{}` and `{}` of kernel `{}`", a.name, b.name, kernel.name()),
                    });
                }
            }
        }
        self.commands.push(Command::Dispatch(kernel));
        Ok(())
    }

    /// Appends a fill with a bit pattern.
    pub fn fill(&mut self, buffer: &Buf, bits: u32) {
        self.commands.push(Command::Fill { buffer: buffer.clone(), bits });
    }

    /// Appends a copy of a whole buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] for different lengths or types, [`Error::Busy`] for one and the same memory.
    pub fn copy(&mut self, src: &Buf, dst: &Buf) -> Result<()> {
        if src.len() != dst.len() || src.dtype() != dst.dtype() {
            return Err(Error::shape(
                format!("copy target `{}`", dst.name()),
                format!("{} x {}", dst.len(), dst.dtype()),
                format!("{} x {}", src.len(), src.dtype()),
            ));
        }
        if src.shares_memory(dst) {
            return Err(Error::Busy { buffer: src.name().to_owned(), user: "source and target of one copy".into() });
        }
        self.commands.push(Command::Copy { src: src.clone(), dst: dst.clone() });
        Ok(())
    }
}
