//! Facts that `scripts/browser.py` prints.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Size of an element on the screen.
#[derive(Debug, Deserialize)]
pub struct BoxOf {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub is_visible: bool,
}

#[derive(Debug, Deserialize)]
pub struct Section {
    pub id: String,
    /// Text of the link to it.
    pub link: String,
    pub heading: Option<String>,
    pub is_visible: bool,
    pub height: f64,
}

/// Statistics of a picture.
#[derive(Debug, Deserialize)]
pub struct Image {
    pub width: u64,
    pub height: u64,
    pub colours: u64,
    pub background: [u8; 3],
    /// Share of the pixels that are not background.
    pub drawn: f64,
}

/// A report that is opened, printed, and opened without scripts.
#[derive(Debug, Deserialize)]
pub struct Page {
    pub console: Vec<String>,
    pub errors: Vec<String>,
    pub requests: Vec<String>,
    pub policy: String,
    pub paint_ms: f64,
    pub sections: Vec<Section>,
    pub drawings: Vec<BoxOf>,
    pub tables: Vec<BoxOf>,
    pub buttons: u64,
    pub scrolls_sideways: bool,
    pub light: Image,
    pub dark: Image,
    pub pages: u64,
    pub size_in_points: (f64, f64),
    pub pdf_bytes: u64,
    pub printed_text: String,
    pub print: Vec<Image>,
    pub without_scripts: WithoutScripts,
}

#[derive(Debug, Deserialize)]
pub struct WithoutScripts {
    pub sections: Vec<Section>,
    pub drawings: Vec<BoxOf>,
    pub tables: Vec<BoxOf>,
    pub buttons: u64,
}

/// Left edge and width of the visible part of each drawing.
pub type Views = Vec<(f64, f64)>;

/// Label, values, figure, and what the line is about.
pub type LineData = (String, Vec<Option<f64>>, String, Option<String>);

/// Values of a plot that the report contains.
#[derive(Debug, Deserialize)]
pub struct Data {
    pub unit: String,
    /// Label, values, and name of the figure.
    pub lines: Vec<LineData>,
}

/// What a click on a process did.
#[derive(Debug, Deserialize)]
pub struct Selection {
    /// Name of the process in the report.
    pub subject: String,
    /// Its values by figure.
    pub figures: BTreeMap<String, Vec<Option<f64>>>,
    pub during: Selected,
    pub csv: Csv,
    pub after: Selected,
}

#[derive(Debug, Deserialize)]
pub struct Selected {
    /// Text of the button that ends the selection.
    pub chip: Option<String>,
    /// Drawings that show only the process.
    pub filtered: usize,
    pub hidden: usize,
    /// Visible rows of processes.
    pub rows: usize,
}

#[derive(Debug, Deserialize)]
pub struct Tooltip {
    /// Position of the mouse in the visible part, 0 to 1.
    pub share: f64,
    pub text: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Csv {
    pub name: String,
    pub text: String,
}

#[derive(Debug, Deserialize)]
pub struct TableRow {
    pub cells: Vec<String>,
    pub hidden: bool,
}

/// A column after a click on its heading.
#[derive(Debug, Deserialize)]
pub struct Sorted {
    pub column: usize,
    pub order: Option<String>,
    pub cells: Vec<String>,
}

/// A table whose headings were clicked one after the other, each twice, and in which a word was
/// searched.
#[derive(Debug, Deserialize)]
pub struct Table {
    pub headings: Vec<String>,
    pub rows: Vec<TableRow>,
    pub sorted: Vec<Sorted>,
    pub word: String,
    /// Rows during the search and after it, if the table can be searched.
    pub searched: Option<Vec<TableRow>>,
    pub cleared: Option<Vec<TableRow>>,
}

/// A report whose controls are used.
#[derive(Debug, Deserialize)]
pub struct Use {
    pub console: Vec<String>,
    pub errors: Vec<String>,
    pub requests: Vec<String>,
    pub seconds: f64,
    pub intervals: usize,
    pub figure: String,
    pub data: Data,
    pub whole: Views,
    pub whole_csv: Csv,
    pub tooltips: Vec<Tooltip>,
    pub dragged: Views,
    pub dragged_tooltip: Tooltip,
    pub dragged_csv: Csv,
    pub keys: BTreeMap<String, Views>,
    pub dragged_back: Views,
    pub too_short: Views,
    pub too_short_tooltip: Tooltip,
    pub reset: Views,
    pub tip_is_hidden: bool,
    pub selection: Selection,
    pub tables: Vec<Table>,
}

/// What a click on a device shows.
#[derive(Debug, Deserialize)]
pub struct Device {
    pub subject: String,
    pub chip: String,
    pub plots: Vec<DevicePlot>,
    pub errors: Vec<String>,
}

/// A plot that shows the device alone: its name, and the classes of its lines.
#[derive(Debug, Deserialize)]
pub struct DevicePlot {
    pub id: String,
    pub lines: Vec<String>,
}

/// The manual, after a search in it and a click on the first result.
#[derive(Debug, Deserialize)]
pub struct Site {
    pub console: Vec<String>,
    pub errors: Vec<String>,
    pub requests: Vec<String>,
    /// Titles in the table of contents.
    pub contents: Vec<String>,
    /// Titles of the results.
    pub found: Vec<String>,
    /// Heading of the page of the first result.
    pub heading: String,
}
