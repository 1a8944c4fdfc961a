//! The clock and the temperature of GPUs, and the time in which heat or power throttled them.

use super::html::{Cell, Html};
use crate::report::{GpuUse, UsageCurves};
use stratus_base::text::bytes;

/// Adds the curves of the first GPU, and a table with one row per GPU; nothing if neither is known.
pub(super) fn section(html: &mut Html, curves: &UsageCurves, number: usize) {
    let is_known = |curve: &[Option<f64>]| curve.iter().any(Option::is_some);
    let first = &curves.gpu;
    let has_clock = is_known(&first.mhz);
    let has_throttling =
        [&first.celsius, &first.heat_percent, &first.power_percent].iter().any(|curve| is_known(curve));
    if has_clock || has_throttling {
        html.open("div", "pair");
        if has_clock {
            html.chart("usage-clock", number, "Clock of the GPU, MHz", "");
        }
        if has_throttling {
            let note = "Throttled: heat or a limit of power kept the clock lower than it could be.";
            html.chart("usage-throttling", number, "Temperature of the GPU, °C, and time throttled, %", note);
        }
        html.close("div");
    }
    table(html, &curves.gpus);
}

fn table(html: &mut Html, gpus: &[GpuUse]) {
    let is_known = |gpu: &GpuUse| gpu.mhz.is_some() || gpu.max_celsius.is_some() || gpu.throttled.is_some();
    if gpus.len() < 2 && !gpus.iter().any(is_known) {
        return;
    }
    let heads = [
        "GPU",
        "busy %",
        "peak memory",
        "power W",
        "clock MHz",
        "max clock MHz",
        "max °C",
        "throttled %",
        "by heat %",
        "by power %",
        "clock while throttled, MHz",
    ];
    let count = |value: Option<u64>| Cell::number(value.map(|value| value as f64), 0);
    let rows: Vec<Vec<Cell>> = gpus
        .iter()
        .map(|gpu| {
            let throttled = gpu.throttled;
            let name = match gpu.worker {
                None => Cell::text("of the run"),
                Some(worker) => Cell::sorted(format!("worker {worker}"), worker as f64),
            };
            vec![
                name,
                Cell::number(gpu.busy_percent, 0),
                match gpu.peak_memory_bytes {
                    None => Cell::number(None, 0),
                    Some(peak) => Cell::sorted(bytes(peak), peak as f64),
                },
                Cell::number(gpu.watts, 0),
                Cell::number(gpu.mhz, 0),
                count(gpu.max_mhz),
                count(gpu.max_celsius),
                Cell::number(throttled.map(|throttled| throttled.percent), 1),
                Cell::number(throttled.map(|throttled| throttled.heat_percent), 1),
                Cell::number(throttled.map(|throttled| throttled.power_percent), 1),
                Cell::number(throttled.and_then(|throttled| throttled.mhz), 0),
            ]
        })
        .collect();
    html.element("h4", "", if gpus.len() > 1 { "Per GPU" } else { "GPU" });
    html.element(
        "p",
        "note",
        "Means and maxima of one sample per second, by NVML; other programs are included. Workers after the \
         first have samples since the run was last resumed.",
    );
    html.table(&heads, &rows);
}
