//! What the differential test compares: packets made by chance, and their fields as plain text.

pub mod facts;
pub mod make;
