/// Sentences of four topics, one very short and one long.
pub const DEFAULT_SENTENCES: [&str; 14] = [
    "The musician tuned her violin before the concert because it had gone flat.",
    "A cellist rehearsed her solo for the evening performance.",
    "The orchestra played the symphony to a full hall.",
    "Heavy rain is expected along the coast tonight.",
    "A storm will bring strong winds and showers to the shore.",
    "The forecast promises sunshine for the weekend.",
    "Simmer the onions in butter until they are golden.",
    "Fry the chopped garlic gently in olive oil.",
    "Knead the dough and let it rise for an hour.",
    "The telescope photographed a distant spiral galaxy.",
    "Astronomers discovered a planet orbiting a nearby star.",
    "The rover sent back pictures of rocks on the surface of Mars.",
    "Good morning!",
    "Although the bakery on the corner had closed years ago, the smell of warm bread still drifted \
     through the street every morning, and the neighbours, who had grown used to it, liked to say \
     that the ovens were simply too stubborn to go cold.",
];
