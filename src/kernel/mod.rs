//! The closed set of kernels.
//!
//! A kernel is plain data: sizes and the buffers it reads and writes, by name. Operations build them,
//! a [`crate::Recording`] holds them in order, a backend executes them. The same names are used for the CPU
//! implementation, the WGSL file, the CUDA file and the rows of the conformance table.
//!
//! Shapes are row-major. `T` tokens, `H` hidden size, `I` expert width, `E` experts (groups), `k` experts per token,
//! `P = T k` pairs, `R` rows. Row arrays are grouped by `offsets` (`u32`, `E + 1` entries, ascending): rows
//! `offsets[e]..offsets[e + 1]` belong to expert `e`, and rows from `offsets[E]` on are neither read nor written.
//! [`NONE`] in an index array means "no such row".

/// Marker in `u32` index arrays: no row, no expert, no pair.
pub const NONE: u32 = u32::MAX;

/// Bins of the score histogram in [`Demand`].
pub const DEMAND_BINS: usize = crate::plan::demand::BINS;

/// Columns of [`Demand::sums`], in units of the expert's mean score and its square: sum of finite scores, sum of their
/// squares, sum of the top bin.
pub const DEMAND_SUMS: usize = 3;

/// Columns of [`Demand::counts`]: eligible pairs, pairs of infinite score.
pub const DEMAND_COUNTS: usize = 2;

/// Columns of [`Select::stats`]: kept finite score sum in units of the expert's mean, sum of pair weights, sum of their
/// squares, largest pair weight, and what the weight cap removed (sum of weight times score, in units of the mean).
pub const SELECT_STATS: usize = 5;

/// How a buffer is used by a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Written, or read and written.
    Write,
}

/// One buffer of a kernel, in declaration order.
#[derive(Debug)]
pub struct Binding<'a, Buf> {
    /// Field name.
    pub name: &'static str,
    /// How the kernel uses it.
    pub access: Access,
    /// The buffer; `None` for an optional one that is absent.
    pub buffer: Option<&'a Buf>,
}

/// Lets the macro treat `Buf` and `Option<Buf>` fields alike.
trait AsBinding<Buf> {
    fn as_binding(&self) -> Option<&Buf>;
}

impl<Buf> AsBinding<Buf> for Buf {
    fn as_binding(&self) -> Option<&Buf> {
        Some(self)
    }
}

impl<Buf> AsBinding<Buf> for Option<Buf> {
    fn as_binding(&self) -> Option<&Buf> {
        self.as_ref()
    }
}

/// Lets the macro treat `A` and `Option<A>` fields alike when buffers are replaced.
trait Rebind<A, B> {
    type Output;
    fn rebind(self, f: &mut impl FnMut(A) -> B) -> Self::Output;
}

impl<A, B> Rebind<A, B> for A {
    type Output = B;
    fn rebind(self, f: &mut impl FnMut(A) -> B) -> B {
        f(self)
    }
}

impl<A, B> Rebind<A, B> for Option<A> {
    type Output = Option<B>;
    fn rebind(self, f: &mut impl FnMut(A) -> B) -> Option<B> {
        self.map(f)
    }
}

/// Refuses zero.
pub(crate) fn check_positive(name: &str, value: usize) -> crate::Result<()> {
    if value == 0 {
        return Err(crate::Error::argument(name, value, "1 or more"));
    }
    Ok(())
}

/// What every argument struct can tell.
trait Arguments<Buf> {
    fn bindings(&self) -> Vec<Binding<'_, Buf>>;
}

/// Defines the argument struct of one kernel and lists its buffers.
macro_rules! kernel {
    (
        $(#[$doc:meta])*
        $name:ident {
            params { $( $(#[$pdoc:meta])* $param:ident: $ptype:ty, )* }
            read { $( $(#[$rdoc:meta])* $read:ident: $rtype:ty, )* }
            write { $( $(#[$wdoc:meta])* $write:ident: $wtype:ty, )* }
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name<Buf> {
            $( $(#[$pdoc])* pub $param: $ptype, )*
            $( $(#[$rdoc])* pub $read: $rtype, )*
            $( $(#[$wdoc])* pub $write: $wtype, )*
        }

        impl<Buf> $name<Buf> {
            pub(super) fn rebind<To>(self, f: &mut impl FnMut(Buf) -> To) -> $name<To> {
                use super::Rebind;
                $name {
                    $( $param: self.$param, )*
                    $( $read: Rebind::<Buf, To>::rebind(self.$read, f), )*
                    $( $write: Rebind::<Buf, To>::rebind(self.$write, f), )*
                }
            }
        }

        impl<Buf> super::Arguments<Buf> for $name<Buf> {
            fn bindings(&self) -> Vec<super::Binding<'_, Buf>> {
                use super::{Access, AsBinding, Binding};
                vec![
                    $( Binding { name: stringify!($read), access: Access::Read, buffer: AsBinding::<Buf>::as_binding(&self.$read) }, )*
                    $( Binding { name: stringify!($write), access: Access::Write, buffer: AsBinding::<Buf>::as_binding(&self.$write) }, )*
                ]
            }
        }
    };
}

/// Lists the kernels once: enum, names, conversions.
macro_rules! registry {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// One kernel with its arguments.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Kernel<Buf> {
            $(
                #[doc = concat!("See [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                $name($name<Buf>),
            )*
        }

        impl<Buf> Kernel<Buf> {
            /// Names of all kernels: the file names of their sources.
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// Name of this kernel.
            pub fn name(&self) -> &'static str {
                match self { $( Self::$name(_) => $text, )* }
            }

            /// All buffers of this kernel in declaration order.
            pub fn bindings(&self) -> Vec<Binding<'_, Buf>> {
                match self { $( Self::$name(args) => args.bindings(), )* }
            }

            /// The same kernel on other buffers, replaced in declaration order: a recording replayed elsewhere.
            pub fn rebind<To>(self, mut f: impl FnMut(Buf) -> To) -> Kernel<To> {
                match self { $( Self::$name(args) => Kernel::$name(args.rebind(&mut f)), )* }
            }
        }

        $(
            impl<Buf> From<$name<Buf>> for Kernel<Buf> {
                fn from(args: $name<Buf>) -> Self {
                    Self::$name(args)
                }
            }
        )*
    };
}

mod expert;
mod optim;
mod router;
mod rows;
mod select;

pub use expert::*;
pub use optim::*;
pub use router::*;
pub use rows::*;
pub use select::*;

registry! {
    Gate = "gate",
    GateBackward = "gate_backward",
    RouterLoss = "router_loss",
    RouterGrad = "router_grad",
    Sigmoid = "sigmoid",
    SigmoidBackward = "sigmoid_backward",
    GroupedForward = "grouped_forward",
    GroupedDgrad = "grouped_dgrad",
    GroupedWgrad = "grouped_wgrad",
    SwiGlu = "swiglu",
    SwiGluBackward = "swiglu_backward",
    Permute = "permute",
    GatherRows = "gather_rows",
    Combine = "combine",
    RowNorms = "row_norms",
    RowKeys = "row_keys",
    RowDots = "row_dots",
    Cast = "cast",
    Score = "score",
    Demand = "demand",
    Select = "select",
    AdamW = "adamw",
    SumSquares = "sum_squares",
}
