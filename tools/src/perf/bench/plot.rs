//! A table of times as a picture: latency and bus bandwidth against the size of a message, a curve for each side.
//!
//! Equal tables give equal files. Points say their numbers when pointed at.

use std::fmt::{self, Display, Formatter};

use super::super::record::{Record, Series};

/// Units of a picture, which are pixels at its usual size.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const PANEL: f64 = 280.0;
const GAP: f64 = 60.0;

const COLOURS: [&str; 3] = ["#4c78a8", "#f58518", "#54a24b"];

/// One side's rows.
#[derive(Debug, Default)]
struct Curve {
    name: String,
    /// Bytes, median microseconds, bus bandwidth in GB/s.
    points: Vec<(u64, f64, f64)>,
}

/// The measured rows, drawn by its [`Display`].
#[derive(Debug)]
pub(super) struct Plot {
    title: String,
    curves: Vec<Curve>,
}

/// A vertical axis: its title, its values, and where they lie between the bottom (0) and the top (1) of a panel.
struct Axis {
    title: &'static str,
    ticks: Vec<f64>,
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// Powers of ten around the values, which are above zero.
    fn logarithmic(title: &'static str, values: impl Iterator<Item = f64> + Clone) -> Self {
        let power = |value: f64| value.max(f64::MIN_POSITIVE).log10();
        let low = values.clone().map(power).fold(f64::INFINITY, f64::min).floor();
        let high = values.map(power).fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
        let ticks = (low as i32..=high as i32).map(|power| 10_f64.powi(power)).collect();
        Self { title, ticks, low, high, logarithmic: true }
    }

    /// From zero on, in steps of 1, 2 or 5 times a power of ten.
    fn linear(title: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max).max(1e-3);
        let power = 10_f64.powf((most / 5.0).log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| most / step <= 6.0);
        let step = step.unwrap_or(10.0 * power);
        let steps = (most / step).ceil();
        let ticks = (0..=steps as u32).map(|tick| f64::from(tick) * step).collect();
        Self { title, ticks, low: 0.0, high: steps * step, logarithmic: false }
    }

    fn height(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }
}

impl Plot {
    pub(super) fn new(title: String) -> Self {
        Self { title, curves: Vec::new() }
    }

    /// Adds a row of the table; one without a time has no point.
    pub(super) fn add(&mut self, row: &Record) {
        let name = if row.series == Series::Measured { "aqueduct" } else { &row.algorithm };
        let (Some(bytes), Some(time)) = (row.size_bytes, row.time_p50_us) else { return };
        let known = self.curves.iter().position(|curve| curve.name == name);
        let index = known.unwrap_or_else(|| {
            self.curves.push(Curve { name: name.to_owned(), points: Vec::new() });
            self.curves.len() - 1
        });
        self.curves[index].points.push((bytes, time, row.bus_bandwidth_gb_s.unwrap_or(0.0)));
    }

    fn points(&self) -> impl Iterator<Item = (u64, f64, f64)> + Clone {
        self.curves.iter().flat_map(|curve| curve.points.iter().copied())
    }

    /// Where a size lies, in powers of two.
    fn x(&self, bytes: u64) -> f64 {
        let power = |bytes: u64| (bytes.max(1) as f64).log2();
        let sizes = || self.points().map(|(bytes, ..)| power(bytes));
        let (low, high) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
        LEFT + (power(bytes) - low) / (high - low).max(1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn panel(
        &self,
        f: &mut Formatter<'_>,
        top: f64,
        axis: &Axis,
        of: fn(&(u64, f64, f64)) -> f64,
    ) -> fmt::Result {
        let y = |value: f64| top + PANEL * (1.0 - axis.height(value));
        writeln!(f, r#"<text x="{LEFT}" y="{:.1}" font-weight="bold">{}</text>"#, top - 8.0, axis.title)?;
        for &tick in &axis.ticks {
            let y = y(tick);
            writeln!(
                f,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="#ddd"/>"##,
                WIDTH - RIGHT
            )?;
            writeln!(
                f,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 6.0,
                y + 4.0,
                number(tick)
            )?;
        }
        let mut sizes: Vec<u64> = self.points().map(|(bytes, ..)| bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for &bytes in sizes.iter().step_by(sizes.len().div_ceil(12).max(1)) {
            let (x, bottom) = (self.x(bytes), top + PANEL);
            writeln!(f, r##"<line x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="#eee"/>"##)?;
            writeln!(
                f,
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 16.0,
                size(bytes)
            )?;
        }
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let at = |point: &(u64, f64, f64)| format!("{:.1},{:.1}", self.x(point.0), y(of(point)));
            let path: Vec<String> = curve.points.iter().map(at).collect();
            let path = path.join(" ");
            writeln!(f, r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>"#)?;
            for point in &curve.points {
                let (x, y, value) = (self.x(point.0), y(of(point)), of(point));
                let name = &curve.name;
                writeln!(
                    f,
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"><title>{name}, {} B: {value:.2}</title></circle>"#,
                    point.0
                )?;
            }
        }
        Ok(())
    }
}

impl Display for Plot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let height = TOP + 2.0 * PANEL + GAP + 40.0;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">"#
        )?;
        writeln!(f, "<title>{}</title>", self.title)?;
        writeln!(f, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
        writeln!(f, r#"<text x="10" y="18" font-size="14">{}</text>"#, self.title)?;
        for (nth, (curve, colour)) in self.curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let x = WIDTH - 360.0 + 120.0 * nth as f64;
            writeln!(f, r#"<rect x="{x}" y="9" width="10" height="10" fill="{colour}"/>"#)?;
            writeln!(f, r#"<text x="{}" y="18">{}</text>"#, x + 14.0, curve.name)?;
        }
        let times = Axis::logarithmic("median time (us)", self.points().map(|(_, time, _)| time));
        let rates = Axis::linear("bus bandwidth (GB/s)", self.points().map(|(.., rate)| rate));
        // An interrupted run may have no row.
        if !self.curves.is_empty() {
            self.panel(f, TOP, &times, |point| point.1)?;
            self.panel(f, TOP + PANEL + GAP, &rates, |point| point.2)?;
        }
        writeln!(f, "</svg>")
    }
}

/// A tick's value, without zeros that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A size as the command takes it.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(series: Series, algorithm: &str, bytes: u64, time: f64) -> Record {
        Record {
            series,
            algorithm: algorithm.to_owned(),
            size_bytes: Some(bytes),
            time_p50_us: Some(time),
            bus_bandwidth_gb_s: Some(bytes as f64 / time / 1e3),
            ..Record::default()
        }
    }

    #[test]
    fn sides_are_curves_and_sizes_go_to_the_right() {
        let mut plot = Plot::new("all-reduce".to_owned());
        for (bytes, time) in [(1 << 10, 2.0), (1 << 14, 4.0), (1 << 20, 100.0)] {
            plot.add(&row(Series::Measured, "packets", bytes, time));
            plot.add(&row(Series::Comparison, "nccl", bytes, 2.0 * time));
        }
        plot.add(&Record { time_p50_us: None, ..row(Series::Measured, "packets", 1, 1.0) });
        let text = plot.to_string();
        assert_eq!((text.matches("<polyline").count(), text.matches("<circle").count()), (4, 12), "{text}");
        for says in ["aqueduct, 1024 B: 2.00", "nccl, 1048576 B: 200.00", ">16K<", ">1M<", ">1000<", ">10<"] {
            assert!(text.contains(says), "{says}: {text}");
        }
        assert!(plot.x(1 << 10) < plot.x(1 << 14) && plot.x(1 << 14) < plot.x(1 << 20));
        assert_eq!((plot.x(1 << 10), plot.x(1 << 20)), (LEFT, WIDTH - RIGHT));
    }

    #[test]
    fn axes_hold_their_values() {
        let axis = Axis::logarithmic("", [2.0, 350.0].into_iter());
        assert_eq!(axis.ticks, [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!((axis.height(1.0), axis.height(1000.0)), (0.0, 1.0));
        let axis = Axis::linear("", [0.0, 437.0].into_iter());
        assert_eq!(axis.ticks, [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert!(axis.height(437.0) < 1.0 && axis.height(0.0) == 0.0);
        // One size and no rate: nothing is divided by zero.
        let mut plot = Plot::new(String::new());
        plot.add(&Record { bus_bandwidth_gb_s: None, ..row(Series::Measured, "packets", 8, 0.0) });
        let text = plot.to_string();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let empty = Plot::new(String::new()).to_string();
        assert!(empty.ends_with("</svg>\n") && !empty.contains("NaN"), "{empty}");
    }
}
