//! An SVG file as PNG.

use std::{fmt::Display, sync::Arc};

use resvg::{
    tiny_skia::{Color, Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};

/// Draws SVG files with the fonts of this machine, and one of its own for what they lack.
pub struct Painter {
    fonts: Arc<Database>,
}

impl Painter {
    /// Reads the list of installed fonts.
    pub fn with_installed_fonts() -> Self {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        for font in [dejavu::sans::regular(), dejavu::sans::bold()] {
            fonts.load_font_data(font.to_vec());
        }
        fonts.set_sans_serif_family("DejaVu Sans");
        Self {
            fonts: Arc::new(fonts),
        }
    }

    /// The picture, with `dpi` pixels per inch.
    ///
    /// # Errors
    ///
    /// If it would be too large.
    pub fn png(&self, svg: &str, dpi: f32) -> Result<Vec<u8>, String> {
        let options = Options {
            fontdb: Arc::clone(&self.fonts),
            ..Options::default()
        };
        let tree = Tree::from_str(svg, &options).map_err(text)?;
        let scale = dpi / 96.0;
        let size = tree.size().scale_by(scale).map(|size| size.to_int_size());
        let size = size.ok_or("the picture has no size")?;
        let mut pixels = Pixmap::new(size.width(), size.height())
            .ok_or_else(|| format!("{}×{} pixels are too many", size.width(), size.height()))?;
        // The last row and column may be covered in part.
        pixels.fill(Color::WHITE);
        resvg::render(
            &tree,
            Transform::from_scale(scale, scale),
            &mut pixels.as_mut(),
        );
        with_resolution(&pixels, dpi).map_err(text)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// A PNG file that says how large the picture is in print.
fn with_resolution(pixels: &Pixmap, dpi: f32) -> Result<Vec<u8>, png::EncodingError> {
    // The background is opaque.
    let colours: Vec<u8> = pixels
        .data()
        .chunks_exact(4)
        .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
        .collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, pixels.width(), pixels.height());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "pixels per metre of an accepted resolution"
    )]
    let per_metre = (dpi / 0.0254).round() as u32;
    encoder.set_pixel_dims(Some(png::PixelDimensions {
        xppu: per_metre,
        yppu: per_metre,
        unit: png::Unit::Meter,
    }));
    encoder.write_header()?.write_image_data(&colours)?;
    Ok(file)
}
