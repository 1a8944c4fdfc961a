//! Label counts by class: few and many classes, samples, pixels and mixed samples, one class; present targets
//! by column.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{CountLabels, MIXED_LABEL_LEN};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [(&[usize], usize); 5] =
        [(&[2], 10), (&[700], 3), (&[5], 1), (&[2, 5, 7], 11), (&[3, 90, 70], 21)];
    let mixed = CountLabels { mixed_labels: true };
    let samples = shapes.map(|(shape, classes)| count(shape, classes, CountLabels::default()));
    samples
        .into_iter()
        .chain([count(&[64, MIXED_LABEL_LEN], 7, mixed), count(&[1, MIXED_LABEL_LEN], 2, mixed)])
        .chain([[64, 7], [1, 1000], [700, 3], [5, 1]].map(targets))
        .collect()
}

fn benchmarks() -> Vec<Case> {
    vec![count(&[4, 360, 480], 11, CountLabels::default())]
}

fn count(shape: &[usize], classes: usize, kernel: CountLabels) -> Case {
    let classes_u32 = classes as u32;
    let (fill, mixed) = match kernel.mixed_labels {
        true => (Fill::Mixed { classes: classes_u32 }, " mixed"),
        false => (Fill::Labels { classes: classes_u32 }, ""),
    };
    Case::new(format!("count_labels {} of {classes}{mixed}", extents(shape)), kernel)
        .filled("labels", shape, DTypeClass::Label, fill)
        .output("counts", &[classes], DTypeClass::Sums)
}

fn targets(shape: [usize; 2]) -> Case {
    Case::new(format!("count_labels {} of targets", extents(&shape)), CountLabels::default())
        .filled("targets", &shape, DTypeClass::Single, Fill::Targets { low: -2.0, high: 2.0 })
        .output("counts", &shape[1..], DTypeClass::Sums)
}
