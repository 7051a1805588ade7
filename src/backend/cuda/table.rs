//! The kernel table: for every kernel of `cuda/` its file, instances, threads, registers and parameters.
//!
//! A row stands beside the code that launches the kernel ([`cuda_kernels!`]) and is the only way to launch it: it makes a
//! struct whose fields are the kernel's parameters by name and type. Grouped GEMMs that share their parameters share the struct.
//! The same rows are what cubins are built of ahead of time and what tests compare compiled kernels with, so a changed signature
//! fails before it can be launched.

use super::launch::{Arg, Ptr};
use crate::tensor::DType;

/// A kernel, or one for each element type.
#[derive(Debug)]
pub(super) struct Spec {
    /// File name in `cuda/`, without `.cu`.
    pub(super) file: &'static str,
    /// Text of the file.
    pub(super) text: &'static str,
    /// Name, before the element types.
    pub(super) base: &'static str,
    /// Type variables.
    pub(super) vars: &'static [&'static str],
    /// Element types of the variables, one list for each instance.
    pub(super) instances: &'static [&'static [DType]],
    /// Threads of a block.
    pub(super) threads: u32,
    /// Registers of a thread at most, on every architecture.
    pub(super) registers: u32,
    /// In the order of the signature.
    pub(super) params: &'static [Param],
}

/// One parameter.
#[derive(Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Type variable, or type as `cuda/dev.h` calls it.
    pub(super) ty: &'static str,
}

/// How a parameter is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pointer to memory that is read.
    Read,
    /// The same, or null.
    Maybe,
    /// Pointer to memory that is written, or read and written.
    Write,
    /// The same, or null.
    MaybeWrite,
    /// A number.
    Value,
}

/// Kernels without type variables.
pub(super) const PLAIN: &[&[DType]] = &[&[]];

/// One kernel for each float type.
pub(super) const FLOATS: &[&[DType]] = &[&[DType::F32], &[DType::BF16], &[DType::F16]];

/// One kernel for each pair of float types.
pub(super) const FLOAT_PAIRS: &[&[DType]] = &[
    &[DType::F32, DType::F32],
    &[DType::F32, DType::BF16],
    &[DType::F32, DType::F16],
    &[DType::BF16, DType::F32],
    &[DType::BF16, DType::BF16],
    &[DType::BF16, DType::F16],
    &[DType::F16, DType::F32],
    &[DType::F16, DType::BF16],
    &[DType::F16, DType::F16],
];

impl Spec {
    /// Name of an instance.
    pub(super) fn name(&self, instance: &[DType]) -> String {
        let types = instance.iter().map(|dtype| format!("_{dtype}"));
        std::iter::once(self.base.to_owned()).chain(types).collect()
    }

    /// Element type of a parameter in an instance, as `cuda/dev.h` calls it.
    fn element(&self, param: &Param, instance: &[DType]) -> String {
        let var = self.vars.iter().position(|&var| var == param.ty);
        var.and_then(|var| instance.get(var)).map_or_else(|| param.ty.to_owned(), DType::to_string)
    }

    /// C type of a parameter in an instance.
    pub(super) fn c_type(&self, param: &Param, instance: &[DType]) -> String {
        let element = self.element(param, instance);
        match param.kind {
            Kind::Value => element,
            Kind::Read | Kind::Maybe => format!("const {element}*"),
            Kind::Write | Kind::MaybeWrite => format!("{element}*"),
        }
    }

    /// The instance that goes with these arguments; the reason where there is none.
    pub(super) fn instance(&self, args: &[Arg]) -> Result<usize, String> {
        if args.len() != self.params.len() {
            return Err(format!("{} arguments for {} parameters", args.len(), self.params.len()));
        }
        let mut types: Vec<Option<DType>> = vec![None; self.vars.len()];
        for (param, arg) in self.params.iter().zip(args) {
            let wrong = || format!("`{}` is {arg:?} where a {:?} {} is due", param.name, param.kind, param.ty);
            let pointer = match (param.kind, arg) {
                (Kind::Value, arg) if arg.c_type() == Some(param.ty) => continue,
                (Kind::Maybe | Kind::MaybeWrite, Arg::Pointer(None)) => continue,
                (Kind::Value, _) | (_, Arg::Pointer(None)) => return Err(wrong()),
                (_, Arg::Pointer(Some(pointer))) => pointer,
                _ => return Err(wrong()),
            };
            match self.vars.iter().position(|&var| var == param.ty) {
                Some(var) => {
                    let known = *types[var].get_or_insert(pointer.dtype);
                    if known != pointer.dtype {
                        return Err(wrong());
                    }
                }
                None if holds(pointer.dtype, param.ty) => {}
                None => return Err(wrong()),
            }
        }
        let found = self.instances.iter().position(|instance| {
            instance.len() == types.len()
                && instance.iter().zip(&types).all(|(dtype, found)| found.is_none_or(|found| found == *dtype))
        });
        found.ok_or_else(|| format!("there is none for {types:?}"))
    }
}

/// Whether memory of an element type may be seen as another one: words may be anything, scratch is words.
fn holds(dtype: DType, ty: &str) -> bool {
    match ty {
        "f32" => dtype == DType::F32,
        "bf16" => dtype == DType::BF16,
        "f16" => dtype == DType::F16,
        "u32" => matches!(dtype, DType::U32 | DType::F32),
        _ => dtype == DType::U32,
    }
}

/// What a field of a kernel's struct becomes.
pub(super) trait IntoArg {
    fn into_arg(self) -> Arg;
}

impl IntoArg for Ptr {
    fn into_arg(self) -> Arg {
        Arg::Pointer(Some(self))
    }
}

impl IntoArg for Option<Ptr> {
    fn into_arg(self) -> Arg {
        Arg::Pointer(self)
    }
}

macro_rules! values {
    ($($ty:ident $variant:ident),*) => { $(
        impl IntoArg for $ty {
            fn into_arg(self) -> Arg {
                Arg::$variant(self)
            }
        }
    )* };
}

values!(u32 U32, u64 U64, i32 I32, f32 F32, f64 F64);

/// Rows of the kernel table.
///
/// `"file": Name [S D] in INSTANCES, threads N, registers N { param: kind type, .. }`, where kind is `read`, `maybe` (read or null), `write`,
/// `maybe_write` or `value`, and type a type variable or a type of `cuda/dev.h`. `"file" / "name"` where the kernel is not called as
/// its file.
macro_rules! cuda_kernels {
    (@field value u32) => { u32 };
    (@field value u64) => { u64 };
    (@field value i32) => { i32 };
    (@field value f32) => { f32 };
    (@field value f64) => { f64 };
    (@field read $ty:ident) => { $crate::backend::cuda::launch::Ptr };
    (@field write $ty:ident) => { $crate::backend::cuda::launch::Ptr };
    (@field maybe $ty:ident) => { Option<$crate::backend::cuda::launch::Ptr> };
    (@field maybe_write $ty:ident) => { Option<$crate::backend::cuda::launch::Ptr> };
    (@kind value) => { $crate::backend::cuda::table::Kind::Value };
    (@kind read) => { $crate::backend::cuda::table::Kind::Read };
    (@kind write) => { $crate::backend::cuda::table::Kind::Write };
    (@kind maybe) => { $crate::backend::cuda::table::Kind::Maybe };
    (@kind maybe_write) => { $crate::backend::cuda::table::Kind::MaybeWrite };
    (@base $file:literal) => { $file };
    (@base $file:literal $base:literal) => { $base };
    ($(
        $(#[$doc:meta])*
        $file:literal $(/ $base:literal)? : $Name:ident [$($var:ident)*] in $instances:expr, threads $threads:literal, registers $registers:literal {
            $( $param:ident : $kind:ident $ty:ident ),* $(,)?
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub(in crate::backend::cuda) struct $Name {
                $( pub(in crate::backend::cuda) $param: $crate::backend::cuda::table::cuda_kernels!(@field $kind $ty), )*
            }

            impl $Name {
                /// Its row of the kernel table.
                pub(in crate::backend::cuda) const SPEC: &'static $crate::backend::cuda::table::Spec =
                    &$crate::backend::cuda::table::Spec {
                        file: $file,
                        text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/", $file, ".cu")),
                        base: $crate::backend::cuda::table::cuda_kernels!(@base $file $($base)?),
                        vars: &[$(stringify!($var)),*],
                        instances: $instances,
                        threads: $threads,
                        registers: $registers,
                        params: &[$($crate::backend::cuda::table::Param {
                            name: stringify!($param),
                            kind: $crate::backend::cuda::table::cuda_kernels!(@kind $kind),
                            ty: stringify!($ty),
                        }),*],
                    };

                /// Runs it on so many blocks, each with so many bytes of shared memory.
                pub(in crate::backend::cuda) fn launch(
                    self,
                    to: &mut $crate::backend::cuda::exec::Exec<'_>,
                    blocks: u64,
                    shared: u32,
                ) -> $crate::Result<()> {
                    to.launch(Self::SPEC, &self.args(), blocks, shared)
                }

                fn args(&self) -> Vec<$crate::backend::cuda::launch::Arg> {
                    use $crate::backend::cuda::table::IntoArg;
                    vec![$(self.$param.into_arg()),*]
                }
            }
        )*

        /// The rows of this file.
        pub(in crate::backend::cuda) const SPECS: &[&$crate::backend::cuda::table::Spec] = &[$($Name::SPEC),*];
    };
}
pub(super) use cuda_kernels;
