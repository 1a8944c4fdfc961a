//! The scale of the loss: gradients that overflow and such that do not, a scale that shrinks, grows and
//! stays.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{AdjustLossScale, FindOverflow, Kernel, LOSS_SCALE};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[1][..], &[33], &[10, 1568], &[32, 16, 3, 3], &[257, 129, 3, 3]] {
        cases.extend(searches(shape));
    }
    for (what, scale, grows_after) in [
        ("stays", numbers(-3.0, 5.0, 0.0, 7.0), 100),
        ("grows", numbers(2.0, 99.0, 0.0, 7.0), 100),
        ("shrinks", numbers(2.0, 99.0, 1.0, 7.0), 100),
        ("is least", numbers(-100.0, 1.0, 1.0, 0.0), 100),
        ("is largest", numbers(100.0, 0.0, 0.0, 0.0), 1),
    ] {
        let case = Case::new(format!("adjust_loss_scale {what}"), AdjustLossScale { grows_after });
        cases.push(case.loss_scale_update(scale).scaled_only());
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    searches(&[512, 512, 3, 3])
}

/// The numbers of a loss scale.
pub(super) fn numbers(exponent: f32, iterations: f32, overflow: f32, skipped: f32) -> Fill {
    Fill::Given([exponent, iterations, overflow, skipped])
}

/// A gradient of finite numbers, and one with an infinite number at its end; a note that was there stays.
fn searches(shape: &[usize]) -> Vec<Case> {
    let finite = Fill::Uniform { low: -1.0, high: 1.0 };
    let case = |what: &str, fill, before| {
        Case::new(format!("find_overflow {what} {}", extents(shape)), FindOverflow)
            .filled("gradient", shape, Class::Master, fill)
            .loss_scale_update(numbers(1.0, 2.0, before, 3.0))
            .scaled_only()
    };
    vec![case("none", finite, 0.0), case("before", finite, 1.0), case("at the end", Fill::Overflow, 0.0)]
}

impl Case {
    /// Restricts the case to the precision whose loss is scaled.
    pub(super) fn scaled_only(mut self) -> Self {
        self.precisions.retain(|&precision| precision == stratus_engine::Precision::F16);
        self
    }

    /// An optimiser's step as one on gradients of a scaled loss: after one iteration that was left out, and
    /// left out itself, so that nothing but the copy is written.
    pub(super) fn of_scaled_loss(self, kernel: impl Into<Kernel>, shape: &[usize]) -> [Self; 2] {
        let step = Self { kernel: kernel.into(), ..self };
        let with = |what: &str, overflow| {
            let case = Self { name: format!("{what} {}", step.name), ..step.clone() };
            case.loss_scale(numbers(-14.0, 5.0, overflow, 1.0)).scaled_only()
        };
        [with("scaled", 0.0), with("scaled skipped", 1.0).output("copy", shape, Class::Compute)]
    }

    /// Adds the loss scale, read.
    pub(super) fn loss_scale(self, scale: Fill) -> Self {
        self.filled("loss_scale", &[LOSS_SCALE.len()], Class::Master, scale)
    }

    /// Adds the loss scale, changed.
    fn loss_scale_update(self, scale: Fill) -> Self {
        self.update("loss_scale", &[LOSS_SCALE.len()], Role::Momentum, scale, Class::Master)
    }
}
