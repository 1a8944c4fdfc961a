//! Activations: functions `y = f(x)` of each element, with at most two numbers as attributes and without
//! parameters. [`table`] declares them; all other code about them follows from its rows.

mod table;

pub use table::*;

use super::{Op, OpDeclaration, Operation, page_row, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The maximum number of attributes of an activation, and of the numbers that a kernel derives from them.
pub const MAX_CONSTANTS: usize = 2;

/// The attributes of an activation. The macro `activation!` implements it.
pub trait ActivationAttributes: Copy + Default + PartialEq {
    /// The names of the attributes, in layer files and in ONNX.
    const NAMES: &'static [&'static str];

    /// The values of the attributes.
    fn values(&self) -> Vec<f32>;

    /// The activation with these values; missing ones are the defaults.
    fn from_values(values: &[f32]) -> Self;
}

/// An activation: its function and derivative in double precision, from the definition. The reference backend
/// computes with them; the kernels of all other backends are compared with it.
pub trait ActivationFunction: ActivationAttributes {
    /// Its properties that do not depend on the attributes.
    const SPEC: ActivationSpec;

    /// `f(x)`. NaN propagates.
    fn value(&self, x: f64) -> f64;

    /// `f'(x)`; at a kink, PyTorch's value. NaN propagates.
    fn derivative(&self, x: f64) -> f64;

    /// The constants of kernels in single precision: the attributes, or numbers that are faster to use.
    fn constants(&self) -> [f32; MAX_CONSTANTS] {
        let mut constants = [0.0; MAX_CONSTANTS];
        constants.iter_mut().zip(self.values()).for_each(|(constant, value)| *constant = value);
        constants
    }

    /// Checks the values of the attributes.
    ///
    /// # Errors
    /// The attribute that is out of range.
    fn check(&self) -> Result<(), ShapeError> {
        Ok(())
    }
}

/// The properties of an activation that do not depend on its attributes.
#[derive(Clone, Copy, Debug)]
pub struct ActivationSpec {
    /// Its formula, for the page of layer files; empty if its name says enough.
    pub formula: &'static str,
    /// True if no output is negative.
    pub is_never_negative: bool,
    /// True if its derivative is 0 on an interval. With the default attributes, kinks are at -3 and 3.
    pub has_zero_gradient_interval: bool,
    /// The ONNX operator; `None` if there is none in operator set 22 or earlier.
    pub onnx: Option<OnnxOperator>,
}

impl ActivationSpec {
    /// The properties of an activation with negative outputs, no interval of derivative 0, and no ONNX
    /// operator.
    const DEFAULT: Self =
        Self { formula: "", is_never_negative: false, has_zero_gradient_interval: false, onnx: None };
}

/// The ONNX operator of an activation. Its attributes have the names of the activation's.
#[derive(Clone, Copy, Debug)]
pub struct OnnxOperator {
    /// The name of the operator.
    pub name: &'static str,
    /// The first operator set that has it.
    pub since: i64,
    /// The values of the attributes that a node omits.
    pub defaults: &'static [f32],
}

/// The text of a default: a fraction such as `1/6` if that is shorter.
fn short(value: f32) -> String {
    let fraction = format!("1/{}", value.recip().round());
    let decimal = value.to_string();
    let is_exact = value == value.recip().round().recip();
    if is_exact && fraction.len() < decimal.len() { fraction } else { decimal }
}

/// Generates the enum of all activations from the table.
macro_rules! enumerate {
    ($($name:ident $kind:literal,)*) => {
        /// An activation with its attributes.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Activation {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)*
        }

        $(impl From<$name> for Activation {
            fn from(activation: $name) -> Self {
                Self::$name(activation)
            }
        }

        impl From<$name> for Op {
            fn from(activation: $name) -> Self {
                Self::Activation(activation.into())
            }
        })*

        /// The layer file declarations of all activations.
        pub(super) const DECLARATIONS: &[OpDeclaration] = &[$(OpDeclaration {
            name: $kind,
            keys: $name::NAMES,
            row: || Activation::from($name::default()).page_row(),
            build: |attributes, _| read::<$name>(attributes).map(Op::from),
            examples: &[],
        },)*];

        impl Activation {
            /// All activations with their default attributes, sorted by name.
            #[must_use]
            pub fn all() -> Vec<Self> {
                vec![$(Self::$name($name::default()),)*]
            }

            /// Its name in layer files.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// Its properties that do not depend on the attributes.
            #[must_use]
            pub fn spec(&self) -> ActivationSpec {
                match self { $(Self::$name(_) => $name::SPEC,)* }
            }

            /// The names of its attributes.
            #[must_use]
            pub fn attribute_names(&self) -> &'static [&'static str] {
                match self { $(Self::$name(_) => $name::NAMES,)* }
            }

            /// The values of its attributes.
            #[must_use]
            pub fn values(&self) -> Vec<f32> {
                match self { $(Self::$name(activation) => activation.values(),)* }
            }

            /// The same function with other attributes; missing ones are the defaults.
            #[must_use]
            pub fn with_values(&self, values: &[f32]) -> Self {
                match self { $(Self::$name(_) => Self::$name($name::from_values(values)),)* }
            }

            /// See [`ActivationFunction::constants`].
            #[must_use]
            pub fn constants(&self) -> [f32; MAX_CONSTANTS] {
                match self { $(Self::$name(activation) => activation.constants(),)* }
            }

            /// See [`ActivationFunction::value`].
            #[must_use]
            pub fn value(&self, x: f64) -> f64 {
                match self { $(Self::$name(activation) => activation.value(x),)* }
            }

            /// See [`ActivationFunction::derivative`].
            #[must_use]
            pub fn derivative(&self, x: f64) -> f64 {
                match self { $(Self::$name(activation) => activation.derivative(x),)* }
            }

            fn check(&self) -> Result<(), ShapeError> {
                match self { $(Self::$name(activation) => activation.check(),)* }
            }
        }
    };
}

crate::with_activations!(enumerate);

/// Reads the attributes of a layer.
fn read<A: ActivationAttributes>(attributes: &Attributes<'_>) -> Result<A, AttributeError> {
    let mut values = A::default().values();
    for (name, value) in A::NAMES.iter().zip(&mut values) {
        *value = attributes.number(name)?.unwrap_or(*value);
    }
    Ok(A::from_values(&values))
}

impl Activation {
    /// The names and values of the attributes that differ from the defaults.
    fn changed(&self) -> Vec<(&'static str, f32)> {
        let defaults = self.with_values(&[]).values();
        let values = self.attribute_names().iter().copied().zip(self.values());
        let changed = values.zip(defaults).filter(|((_, value), default)| value != default);
        changed.map(|(attribute, _)| attribute).collect()
    }

    /// Writes the attributes that differ from the defaults to a layer file.
    pub(crate) fn write_attributes(&self, to: &mut AttributeWriter) {
        for (name, value) in self.changed() {
            to.number(name, value);
        }
    }

    /// Its row on the page of layer files.
    fn page_row(&self) -> String {
        let values = self.attribute_names().iter().zip(self.values());
        let attributes: Vec<String> =
            values.map(|(name, value)| format!("`{name}` ({})", short(value))).collect();
        let formula = self.spec().formula;
        let semicolon = if formula.is_empty() { "" } else { "; " };
        page_row(&attributes.join(", "), &format!("shape unchanged{semicolon}{formula}"))
    }

    /// All activations with their default attributes, and those that have attributes also with others.
    #[must_use]
    pub fn examples() -> Vec<Self> {
        let others = |default: Self| -> Vec<Self> {
            let values: Vec<f32> = default.values().iter().map(|value| 0.75 * value).collect();
            if values.is_empty() { vec![default] } else { vec![default, default.with_values(&values)] }
        };
        Self::all().into_iter().flat_map(others).collect()
    }
}

impl Operation for Activation {
    fn kind(&self) -> &'static str {
        self.name()
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input(self.name(), inputs)?;
        for (name, value) in self.attribute_names().iter().zip(self.values()) {
            if !value.is_finite() {
                return Err(ShapeError::new(format!("`{name}` must be finite, got {value}")));
            }
        }
        self.check()?;
        Ok(input.clone())
    }

    /// One operation for each element: functions such as the exponential count as one.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn is_never_negative(&self, _inputs_are: bool) -> bool {
        self.spec().is_never_negative
    }

    fn attributes(&self) -> String {
        let changed = self.changed();
        changed.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_the_shape() {
        let input = Shape::image(3, 4, 5);
        for activation in Activation::examples() {
            assert_eq!(activation.output_shape(&[&input]).unwrap(), input);
            assert_eq!(activation.forward_flops(&[&input], &input), 60);
            for inputs in [&[][..], &[&input, &input]] {
                let message = activation.output_shape(inputs).unwrap_err().to_string();
                let expected = format!("{}: expected 1 input, got {}", activation.name(), inputs.len());
                assert_eq!(message, expected);
            }
        }
    }

    #[test]
    fn attributes_must_be_finite_and_in_range() {
        let input = Shape::vector(3);
        let message = |activation: Activation| activation.output_shape(&[&input]).unwrap_err().to_string();
        for value in [f32::NAN, f32::INFINITY] {
            assert_eq!(message(Elu { alpha: value }.into()), format!("`alpha` must be finite, got {value}"));
        }
        let flat = HardSigmoid { alpha: 0.0, beta: 0.5 };
        assert_eq!(message(flat.into()), "`alpha` must be > 0, got 0");
    }

    #[test]
    fn attributes_are_shown_if_they_differ_from_the_default() {
        assert_eq!(Activation::from(HardSigmoid::default()).attributes(), "");
        let other = HardSigmoid { alpha: 0.2, beta: 0.5 };
        assert_eq!(Activation::from(other).attributes(), "alpha 0.2");
    }

    #[test]
    fn names_are_sorted_and_constants_suffice() {
        let all = Activation::all();
        assert!(all.is_sorted_by_key(Activation::name));
        for activation in all {
            assert!(activation.values().len() <= MAX_CONSTANTS, "{}", activation.name());
            assert_eq!(activation.values().len(), activation.attribute_names().len());
            if let Some(onnx) = activation.spec().onnx {
                assert_eq!(onnx.defaults.len(), activation.values().len(), "{}", activation.name());
            }
        }
    }

    /// Central differences of the function, away from kinks.
    #[test]
    fn derivatives_match_differences() {
        const STEP: f64 = 1e-5;
        for activation in Activation::examples() {
            for position in -40..=40 {
                let x = f64::from(position) * 0.37 + 0.011;
                let slope = (activation.value(x + STEP) - activation.value(x - STEP)) / (2.0 * STEP);
                let error = (slope - activation.derivative(x)).abs();
                assert!(error < 1e-8, "{activation:?} at {x}: off by {error}");
            }
            assert!(activation.value(f64::NAN).is_nan() && activation.derivative(f64::NAN).is_nan());
        }
    }

    #[test]
    fn outputs_declared_never_negative_are_not() {
        for activation in Activation::examples() {
            let outputs = (-500..=500).map(|position| activation.value(f64::from(position) * 0.02));
            let negative = outputs.fold(false, |negative, y| negative | (y < 0.0));
            assert_eq!(negative, !activation.spec().is_never_negative, "{activation:?}");
        }
    }
}
