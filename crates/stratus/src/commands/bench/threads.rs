//! `stratus bench kernels --threads 1,2,4`: renders the speed-up of each kernel by threads.

use crate::output::Table;
use stratus_train::bench::threads::ThreadScaling;

/// Renders a table at most `width` columns wide.
pub fn render(by: &ThreadScaling, width: Option<usize>) -> String {
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let heading = ["layer", "kernel", "phase"].map(str::to_owned);
    let counts = by.threads.iter().map(|count| format!("ms, {count}"));
    let rates = ["speed-up", "GFLOP/s", "GB/s", "% of peak", "bound"].map(str::to_owned);
    let mut rows: Vec<Vec<String>> = vec![heading.into_iter().chain(counts).chain(rates).collect()];
    rows.extend(by.kernels.iter().map(|kernel| {
        let names = [kernel.layer.clone(), kernel.kernel.clone(), kernel.phase.to_owned()];
        let times = kernel.ms.iter().map(|ms| cell(*ms, 3));
        let rates = [cell(kernel.speed_up, 1), cell(kernel.gflops, 0), cell(kernel.gb_per_second, 1)];
        let share = kernel.percent_of_peak.map_or_else(|| "–".to_owned(), |share| format!("{share:.0} %"));
        let bound = [share, kernel.bound.unwrap_or("–").to_owned()];
        names.into_iter().chain(times).chain(rates).chain(bound).collect()
    }));
    let step = by.step_s.iter().map(|seconds| format!("{:.2}", seconds * 1e3)).collect::<Vec<_>>();
    let images = by.images_per_second.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>();
    let threads = by.threads.iter().map(usize::to_string).collect::<Vec<_>>();
    format!(
        "{} {} batch {}\n{}\nthreads   {}\nstep, ms  {}\nimages/s  {}\npeaks     {} GB/s, {} GFLOP/s\n",
        by.network,
        by.precision,
        by.batch,
        Table::new(&rows).max_width(width, &["bound", "kernel", "GB/s", "GFLOP/s"]),
        threads.join("  "),
        step.join("  "),
        images.join("  "),
        cell(by.peak_gb_per_second, 1),
        cell(by.peak_gflops, 0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_train::bench::threads::KernelScaling;

    #[test]
    fn unknown_values_are_dashes() {
        let kernel = KernelScaling {
            layer: "conv1".into(),
            kernel: "b".into(),
            phase: "forward",
            ms: vec![Some(1.0), None],
            ..KernelScaling::default()
        };
        let by = ThreadScaling {
            network: "net".into(),
            precision: "bf16".into(),
            batch: 8,
            threads: vec![1, 4],
            images_per_second: vec![4000.0; 2],
            step_s: vec![0.002; 2],
            peak_gb_per_second: None,
            peak_gflops: None,
            kernels: vec![kernel],
        };
        let text = render(&by, None);
        assert!(text.contains("peaks     – GB/s, – GFLOP/s"), "{text}");
        let row = text.lines().find(|line| line.starts_with("conv1")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["conv1", "b", "forward", "1.000", "–", "–", "–", "–", "–", "–"]
        );
    }
}
