//! Activations. Their functions, in double precision, are in the table of `stratus-graph`.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ActivationBackward, ActivationForward};
use stratus_graph::ops::{Activation, ActivationFunction};

/// Generates the kernels with a loop for each activation, so that the choice is outside the loop.
macro_rules! kernels {
    ($($name:ident $kind:literal,)*) => {
        impl ReferenceKernel for ActivationForward {
            fn run(
                &self,
                operands: &mut [Tensor<'_>],
                _scratch: &mut [f64],
                _tile: Tile,
            ) -> Result<(), String> {
                let [x, y] = operands else { return Err(unexpected_operands()) };
                match self.0 {
                    $(Activation::$name(f) => y.fill_with(|position| f.value(x.get(position))),)*
                }
                Ok(())
            }
        }

        impl ReferenceKernel for ActivationBackward {
            fn run(
                &self,
                operands: &mut [Tensor<'_>],
                _scratch: &mut [f64],
                _tile: Tile,
            ) -> Result<(), String> {
                let [x, dy, dx] = operands else { return Err(unexpected_operands()) };
                match self.0 {
                    $(Activation::$name(f) => {
                        dx.fill_with(|position| dy.get(position) * f.derivative(x.get(position)));
                    })*
                }
                Ok(())
            }
        }
    };
}

stratus_graph::with_activations!(kernels);
