//! The pixels that ONNX's `Resize` copies with `mode` `nearest`, as onnxruntime computes them, in f32.

/// The attributes that determine the copied pixel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nearest<'a> {
    /// `coordinate_transformation_mode`.
    pub coordinates: &'a str,
    /// `nearest_mode`, or `simple` for the operators that have none: rounded down, or up if the map shrinks.
    pub rounding: &'a str,
}

impl Nearest<'_> {
    /// The attributes of exported models.
    pub const EXPORTED: Nearest<'static> = Nearest { coordinates: "asymmetric", rounding: "floor" };

    /// The input pixel of output `index` along an axis. `None` if an attribute is unsupported.
    fn source(&self, index: usize, scale: f32, [inputs, outputs]: [usize; 2]) -> Option<usize> {
        let x = index as f32;
        let position = match self.coordinates {
            "half_pixel" => (x + 0.5) / scale - 0.5,
            "pytorch_half_pixel" if outputs > 1 => (x + 0.5) / scale - 0.5,
            "pytorch_half_pixel" => 0.0,
            "asymmetric" => x / scale,
            "align_corners" if outputs > 1 => x * (inputs.saturating_sub(1) as f32) / ((outputs - 1) as f32),
            "align_corners" => 0.0,
            "tf_half_pixel_for_nn" => (x + 0.5) / scale,
            _ => return None,
        };
        let rounded = match self.rounding {
            "round_prefer_floor" => (position - 0.5).ceil(),
            "round_prefer_ceil" => (position + 0.5).floor(),
            "floor" => position.floor(),
            "ceil" => position.ceil(),
            "simple" if scale < 1.0 => position.ceil(),
            "simple" => position.trunc(),
            _ => return None,
        };
        // The cast saturates, and NaN becomes 0.
        Some((rounded as usize).min(inputs.saturating_sub(1)))
    }

    /// Returns whether every output of an axis is the input pixel `⌊index · inputs / outputs⌋`, which layers
    /// copy.
    pub fn is_floor(&self, scale: f32, [inputs, outputs]: [usize; 2]) -> bool {
        (0..outputs)
            .all(|index| self.source(index, scale, [inputs, outputs]) == Some(index * inputs / outputs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_exports_copy_the_floor() {
        for factor in [1, 2, 3, 4, 7, 8, 41] {
            for inputs in [1, 2, 5, 7, 13] {
                let sizes = [inputs, inputs * factor];
                for (coordinates, rounding) in [
                    ("asymmetric", "floor"),
                    ("asymmetric", "simple"),
                    ("half_pixel", "round_prefer_floor"),
                    ("half_pixel", "round_prefer_ceil"),
                    ("tf_half_pixel_for_nn", "floor"),
                ] {
                    let nearest = Nearest { coordinates, rounding };
                    assert!(nearest.is_floor(factor as f32, sizes), "{nearest:?} {sizes:?}");
                }
            }
        }
    }

    #[test]
    fn other_exports_copy_other_pixels() {
        for (coordinates, rounding) in
            [("asymmetric", "ceil"), ("align_corners", "floor"), ("half_pixel", "floor"), ("cubic", "floor")]
        {
            assert!(!Nearest { coordinates, rounding }.is_floor(2.0, [4, 8]), "{coordinates} {rounding}");
        }
        // Half the size: onnxruntime's old Upsample rounds up.
        assert!(Nearest::EXPORTED.is_floor(0.5, [8, 4]));
        assert!(!Nearest { rounding: "ceil", ..Nearest::EXPORTED }.is_floor(0.4, [8, 3]));
    }
}
