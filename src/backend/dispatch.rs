//! Which function runs which kernel, in every backend on a device.

/// Hands a kernel to the function of its name, in the caller's module of its family.
macro_rules! dispatch {
    ($kernel:expr, $to:expr) => {
        match $kernel {
            Kernel::Permute(args) => permute::permute(args, $to),
            Kernel::GatherRows(args) => rows::gather_rows(args, $to),
            Kernel::Combine(args) => rows::combine(args, $to),
            Kernel::RowNorms(args) => rows::row_norms(args, $to),
            Kernel::RowKeys(args) => rows::row_keys(args, $to),
            Kernel::RowDots(args) => rows::row_dots(args, $to),
            Kernel::Cast(args) => rows::cast(args, $to),
            Kernel::SwiGlu(args) => swiglu::swiglu(args, $to),
            Kernel::SwiGluBackward(args) => swiglu::swiglu_backward(args, $to),
            Kernel::Gate(args) => router::gate(args, $to),
            Kernel::GateBackward(args) => router::gate_backward(args, $to),
            Kernel::RouterLoss(args) => router_loss::router_loss(args, $to),
            Kernel::RouterGrad(args) => router::router_grad(args, $to),
            Kernel::Sigmoid(args) => router::sigmoid(args, $to),
            Kernel::SigmoidBackward(args) => router::sigmoid_backward(args, $to),
            Kernel::AdamW(args) => optim::adamw(args, $to),
            Kernel::SumSquares(args) => optim::sum_squares(args, $to),
            Kernel::GroupedForward(args) => gemm::grouped_forward(args, $to),
            Kernel::GroupedDgrad(args) => gemm::grouped_dgrad(args, $to),
            Kernel::GroupedWgrad(args) => gemm::grouped_wgrad(args, $to),
            Kernel::Score(args) => score::score(args, $to),
            Kernel::Demand(args) => demand::demand(args, $to),
            Kernel::Select(args) => select::select(args, $to),
        }
    };
}

pub(super) use dispatch;
